"""Compiles pipelines on a device without hardware: the child process that compiler.py starts for a GPU.

Reads cases from standard input (JSON), writes a line of JSON for the device, then one for each case.
"""

import json
import struct
import sys
import time
from pathlib import Path

import vulkan as vk


def main() -> None:
    instance = vk.vkCreateInstance(
        vk.VkInstanceCreateInfo(pApplicationInfo=vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))), None
    )
    physical = vk.vkEnumeratePhysicalDevices(instance)[0]
    properties = vk.vkGetPhysicalDeviceProperties(physical)
    version = properties.driverVersion
    print(
        json.dumps(
            {"device": properties.deviceName, "mesa": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}"}
        ),
        flush=True,
    )
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, pQueuePriorities=[1.0])
    feature = vk.VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR(pipelineExecutableInfo=vk.VK_TRUE)
    device = vk.vkCreateDevice(
        physical,
        vk.VkDeviceCreateInfo(
            pNext=feature, pQueueCreateInfos=[queue], ppEnabledExtensionNames=["VK_KHR_pipeline_executable_properties"]
        ),
        None,
    )
    for case in json.load(sys.stdin):
        print(json.dumps(_compile(device, case)), flush=True)


def _compile(device, case: dict) -> dict:
    start = time.process_time()
    pipeline = _create(device, case)
    seconds = round(time.process_time() - start, 3)
    result = {"seconds": seconds, **_describe(device, pipeline)}
    vk.vkDestroyPipeline(device, pipeline, None)
    return result


def _create(device, case: dict):
    code, spec = Path(case["spv"]).read_bytes(), case["spec"]
    stage_bit = vk.VK_SHADER_STAGE_COMPUTE_BIT
    bindings = [
        vk.VkDescriptorSetLayoutBinding(
            binding=i, descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=1, stageFlags=stage_bit
        )
        for i in range(case["bindings"])
    ]
    sets = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None)
    ranges = [vk.VkPushConstantRange(stageFlags=stage_bit, offset=0, size=case["push"])] if case["push"] else []
    layout = vk.vkCreatePipelineLayout(
        device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets], pPushConstantRanges=ranges), None
    )
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    entries = [vk.VkSpecializationMapEntry(constantID=i, offset=4 * i, size=4) for i in range(len(spec))]
    data = vk.ffi.from_buffer(struct.pack(f"{len(spec)}I", *spec))
    stage = vk.VkPipelineShaderStageCreateInfo(
        stage=stage_bit,
        module=module,
        pName="main",
        pSpecializationInfo=vk.VkSpecializationInfo(pMapEntries=entries, dataSize=4 * len(spec), pData=data),
    )
    flags = vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
    flags |= vk.VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR
    info = vk.VkComputePipelineCreateInfo(flags=flags, stage=stage, layout=layout)
    return vk.vkCreateComputePipelines(device, None, 1, [info], None)[0]


def _describe(device, pipeline) -> dict:
    """What the driver says of a compiled pipeline: the size of its waves, statistics by name, the text of its code."""

    def function(name: str):
        return vk.ffi.cast(f"PFN_{name}", vk.lib.vkGetDeviceProcAddr(device, name.encode()))

    ffi = vk.ffi
    count = ffi.new("uint32_t*")
    which = ffi.new(
        "VkPipelineExecutableInfoKHR*",
        {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, "pipeline": pipeline},
    )
    one, properties = ffi.new("uint32_t*", 1), ffi.new("VkPipelineExecutablePropertiesKHR*")
    properties.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR
    of = ffi.new("VkPipelineInfoKHR*", {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, "pipeline": pipeline})
    function("vkGetPipelineExecutablePropertiesKHR")(device, of, one, properties)
    get = function("vkGetPipelineExecutableStatisticsKHR")
    get(device, which, count, ffi.NULL)
    statistics = ffi.new("VkPipelineExecutableStatisticKHR[]", count[0])
    for s in statistics:
        s.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR
    get(device, which, count, statistics)
    numbers = {
        ffi.string(s.name).decode(): s.value.u64
        for s in statistics
        if s.format == vk.VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR
    }
    get = function("vkGetPipelineExecutableInternalRepresentationsKHR")
    get(device, which, count, ffi.NULL)
    texts = ffi.new("VkPipelineExecutableInternalRepresentationKHR[]", count[0])
    for t in texts:
        t.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR
    get(device, which, count, texts)
    buffers = [ffi.new("char[]", t.dataSize) for t in texts]
    for t, buffer in zip(texts, buffers, strict=True):
        t.pData = buffer
    get(device, which, count, texts)
    assembly = next(
        ffi.string(b).decode() for t, b in zip(texts, buffers, strict=True) if ffi.string(t.name) == b"Assembly"
    )
    return {"wave": properties.subgroupSize, "statistics": numbers, "assembly": assembly}


if __name__ == "__main__":
    main()
