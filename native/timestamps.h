// When dispatches ran, by the device's own clock.
#pragma once

#include <utility>

#include "context.h"

namespace companion {

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
            throw out_of_range(std::to_string(num_marks) + " marks wanted", count);
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
            throw out_of_range("mark " + std::to_string(index), times_->count);
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

}  // namespace companion
