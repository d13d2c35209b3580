// Pipelines that dispatches with other buffers and grids share: kp makes one for each, and a driver translates each
// anew.
//
// A Pipeline is a shader with its constants, a Binding that pipeline with buffers, a Dispatch an operation for kp that
// runs a binding. Each holds what it needs, the device too, so they may be dropped in any order.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "context.h"

namespace companion {

// kp::Tensor::constructDescriptorBufferInfo, which says which buffer a tensor is.
using BufferInfo = VkDescriptorBufferInfo (*)(kp::Tensor*);

class Pipeline {
public:
    const std::shared_ptr<VkDevice> device;
    const uint32_t num_bindings;
    const uint32_t push_bytes;
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkPipeline handle = VK_NULL_HANDLE;

    // constants: of 4 bytes each, with the ids 0, 1, ..; bindings: storage buffers 0, 1, ..
    Pipeline(std::shared_ptr<VkDevice> on, uint32_t bindings, uint32_t push, const std::string& spirv,
             const std::string& constants)
        : Pipeline(std::move(on), bindings, push) {  // from here on the destructor cleans up
        create_layouts();
        create_pipeline(spirv, constants);
    }
    ~Pipeline() {
        vkDestroyPipeline(*device, handle, nullptr);
        vkDestroyPipelineLayout(*device, layout, nullptr);
        vkDestroyDescriptorSetLayout(*device, set_layout, nullptr);
    }
    Pipeline(const Pipeline&) = delete;

private:
    Pipeline(std::shared_ptr<VkDevice> on, uint32_t bindings, uint32_t push)
        : device(std::move(on)), num_bindings(bindings), push_bytes(push) {}

    void create_layouts() {
        std::vector<VkDescriptorSetLayoutBinding> slots(num_bindings);
        for (uint32_t i = 0; i < num_bindings; i++) {
            slots[i].binding = i;
            slots[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
            slots[i].descriptorCount = 1;
            slots[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
        }
        VkDescriptorSetLayoutCreateInfo set{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
        set.bindingCount = num_bindings;
        set.pBindings = slots.data();
        check(vkCreateDescriptorSetLayout(*device, &set, nullptr, &set_layout), "vkCreateDescriptorSetLayout");

        const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes};
        VkPipelineLayoutCreateInfo create{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
        create.setLayoutCount = 1;
        create.pSetLayouts = &set_layout;
        create.pushConstantRangeCount = push_bytes ? 1 : 0;
        create.pPushConstantRanges = &range;
        check(vkCreatePipelineLayout(*device, &create, nullptr, &layout), "vkCreatePipelineLayout");
    }

    void create_pipeline(const std::string& spirv, const std::string& constants) {
        std::vector<uint32_t> words(spirv.size() / sizeof(uint32_t));
        std::copy_n(spirv.data(), words.size() * sizeof(uint32_t), reinterpret_cast<char*>(words.data()));
        VkShaderModuleCreateInfo modules{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
        modules.codeSize = words.size() * sizeof(uint32_t);
        modules.pCode = words.data();
        VkShaderModule shader = VK_NULL_HANDLE;
        check(vkCreateShaderModule(*device, &modules, nullptr, &shader), "vkCreateShaderModule");

        std::vector<VkSpecializationMapEntry> entries;
        for (uint32_t i = 0; i < constants.size() / sizeof(uint32_t); i++) {
            entries.push_back({i, static_cast<uint32_t>(i * sizeof(uint32_t)), sizeof(uint32_t)});
        }
        const VkSpecializationInfo values{static_cast<uint32_t>(entries.size()), entries.data(), constants.size(),
                                          constants.data()};
        VkComputePipelineCreateInfo create{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
        create.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
        create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
        create.stage.module = shader;
        create.stage.pName = "main";
        create.stage.pSpecializationInfo = &values;
        create.layout = layout;
        const VkResult result = vkCreateComputePipelines(*device, VK_NULL_HANDLE, 1, &create, nullptr, &handle);
        vkDestroyShaderModule(*device, shader, nullptr);
        check(result, "vkCreateComputePipelines");
    }
};

class Binding {
public:
    const std::shared_ptr<Pipeline> pipeline;
    VkDescriptorSet set = VK_NULL_HANDLE;

    Binding(std::shared_ptr<Pipeline> of, std::vector<std::shared_ptr<kp::Tensor>> tensors, BufferInfo info)
        : Binding(std::move(of), std::move(tensors)) {
        if (tensors_.size() != pipeline->num_bindings) {
            throw std::invalid_argument(std::to_string(tensors_.size()) + " tensors, the pipeline binds " +
                                        std::to_string(pipeline->num_bindings));
        }
        const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, pipeline->num_bindings};
        VkDescriptorPoolCreateInfo create{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
        create.maxSets = 1;
        create.poolSizeCount = 1;
        create.pPoolSizes = &size;
        check(vkCreateDescriptorPool(*pipeline->device, &create, nullptr, &pool_), "vkCreateDescriptorPool");
        VkDescriptorSetAllocateInfo allocate{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
        allocate.descriptorPool = pool_;
        allocate.descriptorSetCount = 1;
        allocate.pSetLayouts = &pipeline->set_layout;
        check(vkAllocateDescriptorSets(*pipeline->device, &allocate, &set), "vkAllocateDescriptorSets");
        write(info);
    }
    ~Binding() { vkDestroyDescriptorPool(*pipeline->device, pool_, nullptr); }
    Binding(const Binding&) = delete;

private:
    Binding(std::shared_ptr<Pipeline> of, std::vector<std::shared_ptr<kp::Tensor>> tensors)
        : pipeline(std::move(of)), tensors_(std::move(tensors)) {}

    void write(BufferInfo info) {
        std::vector<VkDescriptorBufferInfo> buffers;
        for (const auto& tensor : tensors_) {
            buffers.push_back(info(tensor.get()));
        }
        std::vector<VkWriteDescriptorSet> writes(buffers.size(), {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET});
        for (uint32_t i = 0; i < writes.size(); i++) {
            writes[i].dstSet = set;
            writes[i].dstBinding = i;
            writes[i].descriptorCount = 1;
            writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
            writes[i].pBufferInfo = &buffers[i];
        }
        vkUpdateDescriptorSets(*pipeline->device, static_cast<uint32_t>(writes.size()), writes.data(), 0, nullptr);
    }

    const std::vector<std::shared_ptr<kp::Tensor>> tensors_;
    VkDescriptorPool pool_ = VK_NULL_HANDLE;
};

// A kp operation. Unlike kp's own it orders nothing after transfers, of which the engine has none.
class Dispatch : public kp::OpBase {
public:
    Dispatch(std::shared_ptr<Binding> binding, const std::array<uint32_t, 3>& grid, std::string push)
        : binding_(std::move(binding)), grid_(grid), push_(std::move(push)) {
        if (push_.size() != binding_->pipeline->push_bytes) {
            throw std::invalid_argument(std::to_string(push_.size()) + " bytes pushed, the pipeline takes " +
                                        std::to_string(binding_->pipeline->push_bytes));
        }
    }

    void record(const VkCommandBuffer& commands) override {
        const Pipeline& pipeline = *binding_->pipeline;
        vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle);
        vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout, 0, 1, &binding_->set, 0,
                                nullptr);
        if (!push_.empty()) {
            vkCmdPushConstants(commands, pipeline.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>(push_.size()), push_.data());
        }
        vkCmdDispatch(commands, grid_[0], grid_[1], grid_[2]);
    }

    void preEval(const VkCommandBuffer&) override {}
    void postEval(const VkCommandBuffer&) override {}

private:
    const std::shared_ptr<Binding> binding_;
    const std::array<uint32_t, 3> grid_;
    const std::string push_;
};

}  // namespace companion
