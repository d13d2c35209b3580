// A Vulkan device: found (Physical), and opened with the features that we use (Context).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

#include "kp.h"

// Newer than the headers of Debian 12 (1.3.239) and Ubuntu 22.04 (1.3.204).
struct MixedDotFeatures {  // VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE
    VkStructureType sType;
    void* pNext;
    VkBool32 float16_to_float32;
    VkBool32 float16_to_float16;
    VkBool32 bfloat16;
    VkBool32 float8_to_float32;
};

struct MatrixShape {  // VkCooperativeMatrixPropertiesKHR
    VkStructureType sType;
    void* pNext;
    uint32_t m, n, k;
    uint32_t a_type, b_type, c_type, result_type;
    VkBool32 saturating;
    uint32_t scope;
};

namespace companion {

constexpr auto MIXED_DOT_FEATURES = static_cast<VkStructureType>(1000673000);
constexpr auto MATRIX_SHAPE = static_cast<VkStructureType>(1000506001);
constexpr uint32_t HALF = 0;  // VkComponentTypeKHR
constexpr uint32_t FLOAT = 1;
constexpr const char* MIXED_DOT = "VK_VALVE_shader_mixed_float_dot_product";
constexpr const char* COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix";

inline void check(VkResult result, const char* what) {
    if (result < 0) {
        throw std::runtime_error(std::string(what) + " gave " + std::to_string(result));
    }
}

inline pybind11::index_error out_of_range(const std::string& wanted, uint32_t found) {
    return pybind11::index_error(wanted + ", there are " + std::to_string(found));
}

// The features that a device is opened with where the driver has them, in the structures that Vulkan passes them in.
struct Features {
    VkPhysicalDeviceFeatures2 head{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    VkPhysicalDeviceVulkan11Features core11{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
    VkPhysicalDeviceVulkan12Features core12{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan13Features core13{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    MixedDotFeatures mixed_dot{MIXED_DOT_FEATURES};

    // Chains what a device of this version, with or without the extension, knows.
    Features(uint32_t version, bool has_mixed_dot) {
        void** next = &head.pNext;
        const auto add = [&next](auto& part) {
            *next = &part;
            next = &part.pNext;
        };
        if (version >= VK_API_VERSION_1_2) {
            add(core11);
            add(core12);
        }
        if (version >= VK_API_VERSION_1_3) {
            add(core13);
        }
        if (has_mixed_dot) {
            add(mixed_dot);
        }
    }
    Features(const Features&) = delete;

    std::map<std::string, VkBool32*> by_name() {
        return {
            {"shaderFloat16", &core12.shaderFloat16},
            {"shaderInt64", &head.features.shaderInt64},
            {"storageBuffer16BitAccess", &core11.storageBuffer16BitAccess},
            {"mixedFloatDotProduct", &mixed_dot.float16_to_float32},
            {"subgroupSizeControl", &core13.subgroupSizeControl},
        };
    }
};

// An instance, and one of its devices, not opened.
class Physical {
public:
    VkInstance instance = VK_NULL_HANDLE;
    VkPhysicalDevice handle = VK_NULL_HANDLE;
    VkPhysicalDeviceProperties properties{};
    uint32_t version = 0;
    bool has_mixed_dot = false;
    bool has_matrices = false;
    uint32_t family = 0;  // the first that computes, as kp chooses
    uint32_t timestamp_bits = 0;

    // index: in the order that Vulkan lists devices in, which is kp's and probe.py's.
    explicit Physical(uint32_t index) {
        uint32_t loader = VK_API_VERSION_1_1;
        check(vkEnumerateInstanceVersion(&loader), "vkEnumerateInstanceVersion");
        VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
        application.apiVersion = std::min(loader, VK_API_VERSION_1_3);
        VkInstanceCreateInfo create{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
        create.pApplicationInfo = &application;
        check(vkCreateInstance(&create, nullptr, &instance), "vkCreateInstance");
        try {
            find(index, application.apiVersion);
        } catch (...) {
            vkDestroyInstance(instance, nullptr);
            throw;
        }
    }
    ~Physical() { vkDestroyInstance(instance, nullptr); }
    Physical(const Physical&) = delete;

    // Names of the features that the driver has.
    std::vector<std::string> features() const {
        Features there(version, has_mixed_dot);
        vkGetPhysicalDeviceFeatures2(handle, &there.head);
        std::vector<std::string> names;
        for (const auto& [name, flag] : there.by_name()) {
            if (*flag) {
                names.push_back(name);
            }
        }
        return names;
    }

    // Sizes (M, N, K) of its cooperative matrices that multiply halves into floats.
    std::vector<std::array<uint32_t, 3>> matrices() const {
        using Get = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, MatrixShape*);
        const auto get = reinterpret_cast<Get>(
            vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
        if (!has_matrices || !get) {
            return {};
        }
        uint32_t count = 0;
        check(get(handle, &count, nullptr), "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
        std::vector<MatrixShape> shapes(count, MatrixShape{MATRIX_SHAPE});
        check(get(handle, &count, shapes.data()), "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
        std::vector<std::array<uint32_t, 3>> found;
        for (const auto& s : shapes) {
            const std::array<uint32_t, 3> size{s.m, s.n, s.k};
            const bool halves = s.a_type == HALF && s.b_type == HALF && s.c_type == FLOAT && s.result_type == FLOAT;
            if (halves && std::find(found.begin(), found.end(), size) == found.end()) {
                found.push_back(size);
            }
        }
        return found;
    }

    bool has_timestamps() const { return timestamp_bits > 0 && properties.limits.timestampPeriod > 0; }

private:
    void find(uint32_t index, uint32_t api_version) {
        uint32_t count = 0;
        check(vkEnumeratePhysicalDevices(instance, &count, nullptr), "vkEnumeratePhysicalDevices");
        std::vector<VkPhysicalDevice> devices(count);
        check(vkEnumeratePhysicalDevices(instance, &count, devices.data()), "vkEnumeratePhysicalDevices");
        if (index >= count) {
            throw out_of_range("no Vulkan device " + std::to_string(index), count);
        }
        handle = devices[index];
        vkGetPhysicalDeviceProperties(handle, &properties);
        version = std::min(api_version, properties.apiVersion);

        check(vkEnumerateDeviceExtensionProperties(handle, nullptr, &count, nullptr), "extensions of the device");
        std::vector<VkExtensionProperties> extensions(count);
        check(vkEnumerateDeviceExtensionProperties(handle, nullptr, &count, extensions.data()),
              "extensions of the device");
        const auto has = [&extensions](const char* name) {
            return std::any_of(extensions.begin(), extensions.end(),
                               [name](const auto& e) { return std::strcmp(e.extensionName, name) == 0; });
        };
        has_mixed_dot = has(MIXED_DOT);
        has_matrices = has(COOPERATIVE_MATRIX);

        vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, nullptr);
        std::vector<VkQueueFamilyProperties> families(count);
        vkGetPhysicalDeviceQueueFamilyProperties(handle, &count, families.data());
        const auto computes = std::find_if(families.begin(), families.end(),
                                           [](const auto& f) { return f.queueFlags & VK_QUEUE_COMPUTE_BIT; });
        if (computes == families.end()) {
            throw std::runtime_error("no queue that computes");
        }
        family = static_cast<uint32_t>(computes - families.begin());
        timestamp_bits = computes->timestampValidBits;
    }
};

inline int num_open = 0;  // contexts, counted under Python's lock: tests ask whether all was given back

// A device that is open with all features above that it has.
class Context {
public:
    Physical physical;
    VkDevice device = VK_NULL_HANDLE;
    VkQueue queue = VK_NULL_HANDLE;

    explicit Context(uint32_t index) : physical(index) {
        Features wanted(physical.version, physical.has_mixed_dot);
        const auto flags = wanted.by_name();
        for (const auto& name : physical.features()) {
            *flags.at(name) = VK_TRUE;
        }
        const float priority = 1;
        VkDeviceQueueCreateInfo queues{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
        queues.queueFamilyIndex = physical.family;
        queues.queueCount = 1;
        queues.pQueuePriorities = &priority;
        VkDeviceCreateInfo create{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
        create.pNext = &wanted.head;
        create.queueCreateInfoCount = 1;
        create.pQueueCreateInfos = &queues;
        create.enabledExtensionCount = physical.has_mixed_dot ? 1 : 0;
        create.ppEnabledExtensionNames = &MIXED_DOT;
        check(vkCreateDevice(physical.handle, &create, nullptr, &device), "vkCreateDevice");
        // Nothing that could throw may follow: until here the device has no owner.
        vkGetDeviceQueue(device, physical.family, 0, &queue);
        num_open++;
    }
    ~Context() {
        vkDestroyDevice(device, nullptr);
        num_open--;
    }
    Context(const Context&) = delete;
};

using ContextPointer = std::shared_ptr<Context>;

// A handle as kp passes it around; the context lives as long as any copy of it.
template <typename Handle>
std::shared_ptr<Handle> shared_handle(Handle handle, const ContextPointer& context) {
    return {new Handle(handle), [context](Handle* pointer) { delete pointer; }};
}

}  // namespace companion
