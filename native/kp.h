// The parts of kp 0.9.0 that our extension modules touch, declared here because an installed kp has no headers.
//
// Only layouts count: the order of OpBase's virtual functions (kompute/operations/OpBase.hpp) and of Manager's members
// (kompute/Manager.hpp). kp writes handles as vk::CommandBuffer, vk::Device and so on, classes that hold the C handle
// and nothing else. pybind11 finds a type that kp registered by its C++ name. Each module compares the version of the
// installed kp on import; tools/build_native.py runs what it built in a child process before it is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <vulkan/vulkan.h>

namespace kp {

class OpBase {
public:
    virtual ~OpBase() = default;
    virtual void record(const VkCommandBuffer& commands) = 0;
    virtual void preEval(const VkCommandBuffer& commands) = 0;
    virtual void postEval(const VkCommandBuffer& commands) = 0;
};

class Tensor {};  // never looked into
class Sequence;
class Algorithm;

class Manager {
public:
    std::shared_ptr<VkInstance> instance;
    bool free_instance;
    std::shared_ptr<VkPhysicalDevice> physical_device;
    std::shared_ptr<VkDevice> device;
    bool free_device;
    std::vector<std::weak_ptr<Tensor>> managed_tensors;
    std::vector<std::weak_ptr<Sequence>> managed_sequences;
    std::vector<std::weak_ptr<Algorithm>> managed_algorithms;
    std::vector<uint32_t> queue_families;
    std::vector<std::shared_ptr<VkQueue>> queues;
    bool manage_resources;
};

// Imports kp, which registers its types with pybind11. Raises ImportError for another version than the declarations'.
inline pybind11::module_ import_checked(const std::string& ours) {
    const std::string wanted = "0.9.0";
    const auto found = pybind11::module_::import("importlib.metadata").attr("version")("kp").cast<std::string>();
    if (found != wanted) {
        throw pybind11::import_error(ours + " was built for kp " + wanted + ", found " + found);
    }
    return pybind11::module_::import("kp");
}

}  // namespace kp
