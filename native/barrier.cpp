// vkprefill._barrier: a kp operation that records one global memory barrier.
//
// kp 0.9 orders transfers before dispatches, but not one dispatch before the next, and has no operation that does.
// Barrier makes all shader writes recorded before it visible to the shaders recorded after it, and to the CPU once the
// submission's fence is signalled.
//
// kp::OpBase is declared here instead of being included, because installed kp has no headers. pybind11 finds the base
// class by its C++ name, a call goes through its virtual table, and the object has no other members: so this must match
// kp 0.9.0's src/include/kompute/operations/OpBase.hpp in the order of its virtual functions and nothing else. The version
// is checked on import; tools/build_barrier.py runs the result in a child process before it is kept.
#include <memory>
#include <string>

#include <pybind11/pybind11.h>
#include <vulkan/vulkan.hpp>

namespace py = pybind11;

namespace kp {

class OpBase {
public:
    virtual ~OpBase() = default;
    virtual void record(const vk::CommandBuffer& commands) = 0;
    virtual void preEval(const vk::CommandBuffer& commands) = 0;
    virtual void postEval(const vk::CommandBuffer& commands) = 0;
};

}  // namespace kp

namespace {

constexpr const char* KP_VERSION = "0.9.0";

class Barrier : public kp::OpBase {
public:
    void record(const vk::CommandBuffer& commands) override {
        VkMemoryBarrier barrier{};
        barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
        barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
        barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT;
        vkCmdPipelineBarrier(static_cast<VkCommandBuffer>(commands), VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                             VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0,  // no flags
                             1, &barrier, 0, nullptr, 0, nullptr);
    }

    void preEval(const vk::CommandBuffer&) override {}
    void postEval(const vk::CommandBuffer&) override {}
};

}  // namespace

PYBIND11_MODULE(_barrier, module) {
    const auto version = py::module_::import("importlib.metadata").attr("version")("kp").cast<std::string>();
    if (version != KP_VERSION) {
        throw py::import_error("vkprefill._barrier was built for kp " + std::string(KP_VERSION) + ", found " + version);
    }
    py::module_::import("kp");  // registers kp::OpBase
    py::class_<Barrier, kp::OpBase, std::shared_ptr<Barrier>>(
        module, "Barrier", "Shader writes before it become visible to shaders after it, and to the CPU after the fence.")
        .def(py::init<>());
}
