// vkprefill._companion: a Vulkan device opened with features, as a manager for kp; timestamps between dispatches, and
// dispatches that share pipelines (pipeline.h).
//
// kp 0.9 opens the device without a single feature and cannot be given one that is open: its constructor for that
// leaves the list of queues empty and then reads past its end. So the companion opens the device, lays a kp::Manager
// out in memory (kp.h) and fills it in; from there kp's own code works with it as with one that it made.
//
// Who owns what: Context owns instance and device. Each pointer to the device that kp hands to its tensors, sequences
// and algorithms keeps the Context, so they may be dropped in any order, also after the manager. The manager gives back
// what was made through it, as kp's does, and neither device nor instance.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>

#include <dlfcn.h>

#include <pybind11/stl.h>

#include "kp.h"
#include "pipeline.h"

namespace py = pybind11;

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

namespace {

constexpr auto MIXED_DOT_FEATURES = static_cast<VkStructureType>(1000673000);
constexpr auto MATRIX_SHAPE = static_cast<VkStructureType>(1000506001);
constexpr uint32_t HALF = 0;  // VkComponentTypeKHR
constexpr uint32_t FLOAT = 1;
constexpr const char* MIXED_DOT = "VK_VALVE_shader_mixed_float_dot_product";
constexpr const char* COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix";
constexpr const char* MANAGER_DESTRUCTOR = "_ZN2kp7ManagerD1Ev";
constexpr const char* TENSOR_BUFFER_INFO = "_ZN2kp6Tensor29constructDescriptorBufferInfoEv";
// More than a kp::Manager has in any build: with its debug layers there are members behind ours, where zeros mean that
// there is no callback.
constexpr size_t MANAGER_BYTES = 64 << 10;

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
            throw py::index_error("no Vulkan device " + std::to_string(index) + ", found " + std::to_string(count));
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

int num_open = 0;  // contexts, counted under Python's lock: tests ask whether all was given back

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
using Destructor = void (*)(kp::Manager*);

// A handle as kp passes it around; the context lives as long as any copy of it.
template <typename Handle>
std::shared_ptr<Handle> shared_handle(Handle handle, const ContextPointer& context) {
    return {new Handle(handle), [context](Handle* pointer) { delete pointer; }};
}

std::shared_ptr<kp::Manager> make_manager(const ContextPointer& context, Destructor destroy) {
    void* memory = ::operator new(MANAGER_BYTES);
    std::memset(memory, 0, MANAGER_BYTES);
    std::shared_ptr<kp::Manager> manager(new (memory) kp::Manager(), [destroy](kp::Manager* pointer) {
        destroy(pointer);
        ::operator delete(pointer);
    });
    manager->instance = shared_handle(context->physical.instance, context);
    manager->physical_device = shared_handle(context->physical.handle, context);
    manager->queue_families = {context->physical.family};
    manager->queues = {shared_handle(context->queue, context)};
    manager->free_instance = false;
    manager->free_device = false;
    manager->manage_resources = true;
    manager->device = shared_handle(context->device, context);
    return manager;
}

// A function of kp's, from the library that is loaded already.
template <typename Function>
Function exported(const std::string& kp_library, const char* symbol) {
    void* library = dlopen(kp_library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* found = library ? dlsym(library, symbol) : nullptr;
    if (!found) {
        throw py::import_error("vkprefill._companion: " + kp_library + " does not export " + symbol);
    }
    return reinterpret_cast<Function>(found);
}

// Points in time on the device, written by Mark and read when the submissions that hold the marks have ended.
class Timestamps {
public:
    VkQueryPool pool = VK_NULL_HANDLE;
    uint32_t count;

    Timestamps(ContextPointer context, uint32_t num_marks) : count(num_marks), context_(std::move(context)) {
        if (!context_->physical.has_timestamps()) {
            throw std::runtime_error("the device has no timestamps");
        }
        VkQueryPoolCreateInfo create{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
        create.queryType = VK_QUERY_TYPE_TIMESTAMP;
        create.queryCount = count;
        check(vkCreateQueryPool(context_->device, &create, nullptr, &pool), "vkCreateQueryPool");
    }
    ~Timestamps() { vkDestroyQueryPool(context_->device, pool, nullptr); }
    Timestamps(const Timestamps&) = delete;

    // The first num_marks, in ticks of the device's own clock.
    std::vector<uint64_t> read(uint32_t num_marks) const {
        if (num_marks > count) {
            throw py::index_error(std::to_string(num_marks) + " marks wanted, there are " + std::to_string(count));
        }
        std::vector<uint64_t> ticks(num_marks);
        const VkResult result =
            vkGetQueryPoolResults(context_->device, pool, 0, num_marks, num_marks * sizeof(uint64_t), ticks.data(),
                                  sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
        check(result, "vkGetQueryPoolResults");
        if (result == VK_NOT_READY) {
            throw std::runtime_error("not all marks have been reached");
        }
        return ticks;
    }

private:
    ContextPointer context_;
};

// A kp operation: the time when all that was recorded before it has ended. Mark 0 empties the others, so it is first.
class Mark : public kp::OpBase {
public:
    Mark(std::shared_ptr<Timestamps> times, uint32_t index) : times_(std::move(times)), index_(index) {
        if (index >= times_->count) {
            throw py::index_error("mark " + std::to_string(index) + ", there are " + std::to_string(times_->count));
        }
    }

    void record(const VkCommandBuffer& commands) override {
        if (index_ == 0) {
            vkCmdResetQueryPool(commands, times_->pool, 0, times_->count);
        }
        vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times_->pool, index_);
    }

    void preEval(const VkCommandBuffer&) override {}
    void postEval(const VkCommandBuffer&) override {}

private:
    std::shared_ptr<Timestamps> times_;
    uint32_t index_;
};

py::dict about(const Physical& physical) {
    py::dict facts;
    facts["name"] = physical.properties.deviceName;
    facts["features"] = physical.features();
    facts["timestamps"] = physical.has_timestamps();
    facts["matrices"] = physical.matrices();
    return facts;
}

}  // namespace

PYBIND11_MODULE(_companion, module) {
    const auto kp_library = kp::import_checked("vkprefill._companion").attr("__file__").cast<std::string>();
    const auto destroy = exported<Destructor>(kp_library, MANAGER_DESTRUCTOR);
    const auto buffer_info = exported<BufferInfo>(kp_library, TENSOR_BUFFER_INFO);

    module.def(
        "describe", [](uint32_t index) { return about(Physical(index)); }, py::arg("index"),
        "What the device would be opened with; nothing stays open.");
    module.def("num_open", [] { return num_open; }, "Devices that are open.");
    py::class_<Context, ContextPointer>(module, "Context", "A device opened with all features that we use.")
        .def(py::init<uint32_t>(), py::arg("index"))
        .def("about", [](const Context& context) { return about(context.physical); })
        .def_property_readonly("tick_ns", [](const Context& c) { return c.physical.properties.limits.timestampPeriod; })
        .def_property_readonly("tick_bits", [](const Context& c) { return c.physical.timestamp_bits; })
        .def("manager", [destroy](const ContextPointer& context) { return make_manager(context, destroy); });
    py::class_<Timestamps, std::shared_ptr<Timestamps>>(module, "Timestamps", "Points in time on the device.")
        .def(py::init<ContextPointer, uint32_t>(), py::arg("context"), py::arg("count"))
        .def("read", &Timestamps::read, py::arg("count"), "The first marks, in ticks.");
    py::class_<Mark, kp::OpBase, std::shared_ptr<Mark>>(module, "Mark", "When all recorded before it has ended.")
        .def(py::init<std::shared_ptr<Timestamps>, uint32_t>(), py::arg("timestamps"), py::arg("index"));
    py::class_<Pipeline, std::shared_ptr<Pipeline>>(module, "Pipeline", "A shader with its constants.")
        .def(py::init([](const ContextPointer& context, uint32_t bindings, uint32_t push_bytes, const std::string& spirv,
                         const std::string& constants) {
                 auto device = shared_handle(context->device, context);
                 return std::make_shared<Pipeline>(std::move(device), bindings, push_bytes, spirv, constants);
             }),
             py::arg("context"), py::arg("bindings"), py::arg("push_bytes"), py::arg("spirv"), py::arg("constants"));
    py::class_<Binding, std::shared_ptr<Binding>>(module, "Binding", "A pipeline with its buffers.")
        .def(py::init([buffer_info](std::shared_ptr<Pipeline> pipeline,
                                    std::vector<std::shared_ptr<kp::Tensor>> tensors) {
                 return std::make_shared<Binding>(std::move(pipeline), std::move(tensors), buffer_info);
             }),
             py::arg("pipeline"), py::arg("tensors"));
    py::class_<Dispatch, kp::OpBase, std::shared_ptr<Dispatch>>(module, "Dispatch", "Runs a binding.")
        .def(py::init<std::shared_ptr<Binding>, const std::array<uint32_t, 3>&, std::string>(), py::arg("binding"),
             py::arg("grid"), py::arg("push"));
}
