// SPDX-License-Identifier: Apache-2.0
//
// nrt_execute: binds the tensors of two sets to a program's parameters and results without copying where that is
// possible, runs it, and makes its results the content of the output tensors.

#include <nrt/nrt.h>
#include <time.h>

#include <cstdlib>
#include <cstring>

#include "errors.h"
#include "kernels.h"
#include "model.h"
#include "tensor_set.h"

namespace neuroncore {
namespace {

uint64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// One launch. Everything it holds lives in the model; the destructor lets go of it.
class Launch {
 public:
  Launch(Model* model, const TensorSet& inputs, const TensorSet& outputs)
      : model_(*model), core_(*model->core), plugin_(*model->core->plugin), inputs_(inputs), outputs_(outputs) {}

  ~Launch() {
    for (Model::Operand& operand : model_.operands) {
      if (operand.temporary != nullptr) plugin_.Destroy(operand.temporary);
      if (operand.storage != nullptr) {
        --operand.storage->uses;
        operand.storage->Release();
      }
      operand = {};
    }
    for (pjrt::Buffer* view : core_.evicted_views) plugin_.Destroy(view);
    core_.evicted_views.clear();
  }

  NRT_STATUS Run() {
    if (NRT_STATUS status = FindOutputs()) return status;
    if (NRT_STATUS status = BindInputs()) return status;
    BindDonations();
    if (NRT_STATUS status = BindScratch()) return status;
    if (NRT_STATUS status = model_.kernel ? ExecuteKernel() : Execute()) return status;
    return TakeResults();
  }

 private:
  NRT_STATUS FindOutputs() {
    const std::vector<TensorType>& results = model_.signature.results;
    for (size_t i = 0; i < results.size(); ++i) {
      Tensor* tensor = i < outputs_.outputs.size() ? outputs_.outputs[i].live() : nullptr;
      if (tensor == nullptr) return Fail(NRT_INVALID, "nrt_execute: output%zu is missing or was freed", i);
      if (tensor->size < results[i].bytes) {
        return Fail(NRT_INVALID, "nrt_execute: output%zu is %s, %zu bytes, but its tensor has %zu", i,
                    results[i].text.c_str(), results[i].bytes, tensor->size);
      }
      if (NRT_STATUS status = CheckCore(*tensor, "output", i)) return status;
      model_.output_tensors[i] = tensor;
    }
    return NRT_SUCCESS;
  }

  NRT_STATUS CheckCore(const Tensor& tensor, const char* kind, size_t index) {
    if (tensor.buffer->core == &core_) return NRT_SUCCESS;
    if (tensor.buffer->core->closed) {
      return Fail(NRT_CLOSED, "nrt_execute: %s%zu is from before nrt_close", kind, index);
    }
    return Fail(NRT_INVALID, "nrt_execute: the model is on core %d, but %s%zu on core %d", core_.index, kind, index,
                tensor.buffer->core->index);
  }

  NRT_STATUS BindInputs() {
    for (size_t i = 0; i < model_.signature.num_inputs; ++i) {
      const TensorType& type = model_.signature.parameters[i].type;
      Tensor* tensor = i < inputs_.inputs.size() ? inputs_.inputs[i].live() : nullptr;
      if (tensor == nullptr) return Fail(NRT_EXEC_BAD_INPUT, "nrt_execute: input%zu is missing or was freed", i);
      if (tensor->size < type.bytes) {
        return Fail(NRT_EXEC_BAD_INPUT, "nrt_execute: input%zu is %s, %zu bytes, but its tensor has %zu", i,
                    type.text.c_str(), type.bytes, tensor->size);
      }
      if (NRT_STATUS status = CheckCore(*tensor, "input", i)) return status;
      Model::Operand& operand = model_.operands[i];
      const PackedParameters::Place place = model_.kernel ? PackedParameters::Place() : model_.packed.places[i];
      if (place.vector >= 0) {
        char* data = model_.vectors[static_cast<size_t>(place.vector)]->data() + place.offset;
        if (!tensor->buffer->Read(tensor->offset, type.bytes, data)) return NRT_RESOURCE;
        core_.counters.bytes_copied.AddExclusive(type.bytes);
        continue;
      }
      if (type.bytes == 0) {
        if (!BindNothing(&operand, place.argument)) return NRT_FAILURE;
        continue;
      }
      Storage* storage = tensor->buffer->ForRead(tensor->offset + type.bytes);
      if (storage == nullptr) return NRT_RESOURCE;
      operand.storage = storage;
      ++storage->uses;
      if (model_.kernel) {
        operand.data = storage->data() + tensor->offset;
        if (tensor->offset == 0 && storage->bytes == type.bytes) operand.donor = tensor->buffer;
      } else if (tensor->offset == 0 && storage->bytes == type.bytes) {
        model_.arguments[place.argument] = storage->handle;
        operand.donor = tensor->buffer;
      } else if (tensor->offset % kAlignment == 0) {
        if ((model_.arguments[place.argument] = storage->View(tensor->offset, type.bytes)) == nullptr)
          return NRT_FAILURE;
      } else if (!BindCopy(&operand, place.argument, storage->data() + tensor->offset, type.bytes)) {
        return NRT_RESOURCE;
      }
    }
    return NRT_SUCCESS;
  }

  // An operand without elements has no memory to share.
  bool BindNothing(Model::Operand* operand, size_t argument) {
    static char nothing[kAlignment];
    operand->temporary = plugin_.CanAllocate() ? plugin_.Allocate(0) : plugin_.View(nothing, 0);
    return (model_.arguments[argument] = operand->temporary) != nullptr;
  }

  // XLA's code relies on aligned operands.
  bool BindCopy(Model::Operand* operand, size_t argument, const char* data, size_t bytes) {
    Storage* copy = Storage::Allocate(&core_, bytes);
    if (copy == nullptr) return false;
    memcpy(copy->data(), data, bytes);
    core_.counters.bytes_copied.AddExclusive(bytes);
    --operand->storage->uses;
    operand->storage->Release();
    operand->storage = copy;
    ++copy->uses;
    model_.arguments[argument] = copy->handle;
    return true;
  }

  // A parameter that may be updated in place is, if its tensor also is that output and nothing else reads the memory.
  // Otherwise PJRT is told not to donate it, and copies.
  void BindDonations() {
    model_.non_donatable.clear();
    for (size_t i = 0; i < model_.signature.num_inputs; ++i) {
      int output = model_.signature.parameters[i].aliased_output;
      if (output < 0) continue;
      Model::Operand& operand = model_.operands[i];
      Tensor* target = model_.output_tensors[static_cast<size_t>(output)];
      if (operand.donor != nullptr && operand.donor == target->buffer && target->covers_buffer() &&
          IsExclusive(operand.storage, 2) && !operand.donor->pinned) {
        operand.donated = true;
      } else {
        KeepFromDonation(i);
      }
    }
  }

  void KeepFromDonation(size_t parameter) {
    if (!model_.kernel) model_.non_donatable.push_back(static_cast<int64_t>(model_.packed.places[parameter].argument));
  }

  // Nothing but the buffer and this launch refers to the memory, and only one operand uses it.
  static bool IsExclusive(Storage* storage, uint32_t references) {
    return storage->uses == 1 && storage->references.load(std::memory_order_acquire) == references &&
           storage->donatable();
  }

  NRT_STATUS BindScratch() {
    for (size_t i = model_.signature.num_inputs; i < model_.operands.size(); ++i) {
      const Parameter& parameter = model_.signature.parameters[i];
      Tensor* target = model_.output_tensors[static_cast<size_t>(parameter.aliased_output)];
      Model::Operand& operand = model_.operands[i];
      // The old content of the output tensor is about to be replaced: its memory is warm and of the right size.
      Storage* storage = target->covers_buffer() && !target->buffer->pinned ? target->buffer->Current() : nullptr;
      if (storage != nullptr) {
        ++storage->uses;
        if (storage->bytes == parameter.type.bytes && IsExclusive(storage, 2)) {
          operand.donor = target->buffer;
        } else {
          --storage->uses;
          storage->Release();
          storage = nullptr;
        }
      }
      bool warm = storage != nullptr;
      if (storage == nullptr) {
        storage = core_.pool.Take(parameter.type.bytes);
        warm = storage != nullptr;
        if (!warm) storage = Storage::Allocate(&core_, parameter.type.bytes);
        if (storage == nullptr) return NRT_RESOURCE;
        ++storage->uses;
      }
      operand.storage = storage;
      if (!model_.kernel) model_.arguments[model_.packed.places[i].argument] = storage->handle;
      operand.data = storage->data();
      if (storage->donatable() || model_.kernel) {
        operand.donated = true;
        if (warm) core_.counters.scratch_reuses.AddExclusive(1);
      } else {
        KeepFromDonation(i);
      }
    }
    return NRT_SUCCESS;
  }

  NRT_STATUS Execute() {
    auto options = pjrt::Arguments<pjrt::ExecuteOptions>();
    options.non_donatable = model_.non_donatable.data();
    options.num_non_donatable = model_.non_donatable.size();
    pjrt::Buffer* const* arguments = model_.arguments.data();
    pjrt::Buffer** results = model_.results.data();
    pjrt::Event* complete = nullptr;
    auto execute = pjrt::Arguments<pjrt::LoadedExecutableExecute>();
    execute.executable = model_.executable;
    execute.options = &options;
    execute.arguments = &arguments;
    execute.num_devices = 1;
    execute.num_arguments = model_.arguments.size();
    execute.outputs = &results;
    execute.complete_events = &complete;

    uint64_t start = Now();
    pjrt::Error* error = plugin_.api().loaded_executable_execute(&execute);
    bool returned = error == nullptr;
    if (returned && complete != nullptr) {
      auto await = pjrt::Arguments<pjrt::EventAwait>();
      await.event = complete;
      error = plugin_.api().event_await(&await);
      auto destroy = pjrt::Arguments<pjrt::EventDestroy>();
      destroy.event = complete;
      plugin_.api().event_destroy(&destroy);
    }
    core_.counters.execution_ns.AddExclusive(Now() - start);
    core_.counters.executions.AddExclusive(1);
    return error == nullptr ? NRT_SUCCESS : Failed(error, returned);
  }

  // The result goes to scratch memory or to that of the operand which it updates, as the executable's would; to new
  // memory if that operand must stay as it is. After a failure it holds anything.
  NRT_STATUS ExecuteKernel() {
    Model::KernelCall& kernel = *model_.kernel;
    for (size_t i = 0; i < kernel.operands.size(); ++i) {
      kernel.operands[i].data = model_.operands[kernel.program.operands[i].parameter].data;
    }
    const Model::Operand& place = model_.operands[static_cast<size_t>(model_.donor_of_output[0])];
    if (!place.donated && (new_result_ = Storage::Allocate(&core_, model_.signature.results[0].bytes)) == nullptr) {
      return NRT_RESOURCE;
    }
    kernel.result.data = place.donated ? place.data : new_result_->data();
    const uint64_t start = Now();
    const NRT_STATUS status = CallKernel(kernel.kernel, {kernel.operands.data(), kernel.operands.size(), &kernel.result,
                                                         1, kernel.program.config.c_str(), nullptr, nullptr});
    core_.counters.execution_ns.AddExclusive(Now() - start);
    core_.counters.executions.AddExclusive(1);
    if (status != NRT_SUCCESS && new_result_ != nullptr) new_result_->Release();
    return status;
  }

  NRT_STATUS Failed(pjrt::Error* error, bool has_results) {
    if (has_results) {
      for (pjrt::Buffer* result : model_.results) plugin_.Destroy(result);
    }
    for (Model::Operand& operand : model_.operands) {
      if (!operand.donated) continue;
      // The program may or may not have consumed it: nobody may look at it again.
      if (operand.donor != nullptr) operand.donor->Drop(operand.storage);
      operand.storage->Forget();
    }
    int code = 0;
    std::string text = plugin_.TakeError(error, &code);
    if (code == pjrt::kFfiOutOfRange) return Fail(NRT_EXEC_OOB, "%s", text.c_str());
    if (code == pjrt::kErrorResourceExhausted) return Fail(NRT_RESOURCE, "%s", text.c_str());
    return Fail(NRT_EXEC_COMPLETED_WITH_ERR, "%s", text.c_str());
  }

  NRT_STATUS TakeResults() {
    NRT_STATUS status = NRT_SUCCESS;
    for (size_t i = 0; i < model_.results.size(); ++i) {
      size_t bytes = model_.signature.results[i].bytes;
      pjrt::Buffer* result = model_.results[i];
      if (bytes == 0) {
        plugin_.Destroy(result);
        continue;
      }
      int parameter = model_.donor_of_output[i];
      Model::Operand* donated = parameter >= 0 && model_.operands[static_cast<size_t>(parameter)].donated
                                    ? &model_.operands[static_cast<size_t>(parameter)]
                                    : nullptr;
      Tensor* tensor = model_.output_tensors[i];
      Storage* storage;
      if (donated != nullptr) {
        if (!model_.kernel) donated->storage->ReplaceHandle(result);
        if (static_cast<size_t>(parameter) < model_.signature.num_inputs) core_.counters.donations.AddExclusive(1);
        // Already the content of the output tensor.
        if (donated->donor != nullptr) {
          core_.counters.bytes_adopted.AddExclusive(bytes);
          continue;
        }
        storage = donated->storage;
        storage->Reference();
      } else {
        storage = model_.kernel ? new_result_ : Storage::Adopt(&core_, result, bytes);
      }
      if (tensor->covers_buffer() && tensor->buffer->Adopt(storage)) {
        core_.counters.bytes_adopted.AddExclusive(bytes);
        continue;
      }
      Storage* place = tensor->buffer->ForWrite(tensor->offset, bytes);
      if (place != nullptr) {
        memcpy(place->data() + tensor->offset, storage->data(), bytes);
        place->Release();
        core_.counters.bytes_copied.AddExclusive(bytes);
      } else {
        status = NRT_RESOURCE;
      }
      storage->Release();
    }
    return status;
  }

  Model& model_;
  Core& core_;
  const Plugin& plugin_;
  const TensorSet& inputs_;
  const TensorSet& outputs_;
  Storage* new_result_ = nullptr;  // of a kernel
};

NRT_STATUS ExecuteModel(nrt_model_t* handle, const nrt_tensor_set_t* input_set, nrt_tensor_set_t* output_set) {
  constexpr const char* kName = "nrt_execute";
  if (NRT_STATUS status = CheckRunning(kName)) return status;
  Model* model = GetModel(kName, handle);
  if (model == nullptr) return NRT_INVALID_HANDLE;
  TensorSet* inputs = GetTensorSet(kName, input_set);
  TensorSet* outputs = inputs == nullptr ? nullptr : GetTensorSet(kName, output_set);
  if (outputs == nullptr) return NRT_INVALID_HANDLE;
  std::lock_guard running(model->core->execution);
  if (model->core->closed) return Fail(NRT_CLOSED, "%s: the model was loaded before nrt_close", kName);
  return Launch(model, *inputs, *outputs).Run();
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                                         nrt_tensor_set_t* outputs) {
  return Guarded("nrt_execute", [&] { return ExecuteModel(model, inputs, outputs); });
}

NEURONCORE_EXPORT NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* inputs,
                                                nrt_tensor_set_t* outputs, int repeat_count) {
  for (int i = 0; i < repeat_count; ++i) {
    if (NRT_STATUS status = nrt_execute(model, inputs, outputs)) return status;
  }
  return NRT_SUCCESS;
}
