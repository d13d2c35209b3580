// vkprefill._barrier: a kp operation that records one global memory barrier.
//
// kp 0.9 orders transfers before dispatches, but not one dispatch before the next, and has no operation that does.
// Barrier makes all shader writes recorded before it visible to the shaders recorded after it, and to the CPU once the
// submission's fence is signalled. It is a module of its own, apart from the companion: it asks less of kp's layout.
#include "kp.h"

namespace py = pybind11;

namespace {

class Barrier : public kp::OpBase {
public:
    void record(const VkCommandBuffer& commands) override {
        VkMemoryBarrier barrier{};
        barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
        barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
        barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT;
        vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                             VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0,  // no flags
                             1, &barrier, 0, nullptr, 0, nullptr);
    }

    void preEval(const VkCommandBuffer&) override {}
    void postEval(const VkCommandBuffer&) override {}
};

}  // namespace

PYBIND11_MODULE(_barrier, module) {
    kp::import_checked("vkprefill._barrier");
    py::class_<Barrier, kp::OpBase, std::shared_ptr<Barrier>>(
        module, "Barrier",
        "Shader writes before it become visible to shaders after it, and to the CPU after the fence.")
        .def(py::init<>());
}
