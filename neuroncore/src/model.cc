// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <nrt/nrt.h>

#include <cstdlib>
#include <cstring>

#include "errors.h"
#include "kernels.h"
#include "neff.h"
#include "slab.h"

namespace neuroncore {
namespace {

Slab<Model>& Models() {
  static auto* slab = new Slab<Model>;
  return *slab;
}

// NRT's table of types knows no bool, f64 or complex.
nrt_dtype_t DtypeOf(pjrt::Type type) {
  switch (type) {
    case pjrt::Type::kPred:
    case pjrt::Type::kU8:
      return NRT_DTYPE_UINT8;
    case pjrt::Type::kS8:
      return NRT_DTYPE_INT8;
    case pjrt::Type::kS16:
      return NRT_DTYPE_INT16;
    case pjrt::Type::kU16:
      return NRT_DTYPE_UINT16;
    case pjrt::Type::kS32:
      return NRT_DTYPE_INT32;
    case pjrt::Type::kU32:
      return NRT_DTYPE_UINT32;
    case pjrt::Type::kS64:
      return NRT_DTYPE_INT64;
    case pjrt::Type::kU64:
      return NRT_DTYPE_UINT64;
    case pjrt::Type::kF16:
      return NRT_DTYPE_FLOAT16;
    case pjrt::Type::kBF16:
      return NRT_DTYPE_BFLOAT16;
    case pjrt::Type::kF32:
      return NRT_DTYPE_FLOAT32;
    case pjrt::Type::kF8E3M4:
      return NRT_DTYPE_FP8_E3;
    case pjrt::Type::kF8E4M3:
    case pjrt::Type::kF8E4M3FN:
      return NRT_DTYPE_FP8_E4;
    case pjrt::Type::kF8E5M2:
      return NRT_DTYPE_FP8_E5;
    default:
      return NRT_DTYPE_UNKNOWN;
  }
}

bool PrepareLaunches(std::string_view program, Model* model) {
  const ProgramSignature& signature = model->signature;
  if (!model->kernel) model->packed = PackParameters(program, signature);
  model->arguments.resize(model->packed.num_arguments);
  for (const PackedParameters::Vector& vector : model->packed.vectors) {
    Storage* storage = Storage::Allocate(model->core, vector.bytes);
    if (storage == nullptr || storage->data() == nullptr) return false;
    memset(storage->data(), 0, vector.bytes);
    model->arguments[model->vectors.size()] = storage->handle;
    model->vectors.push_back(storage);
  }
  model->operands.resize(signature.parameters.size());
  model->non_donatable.reserve(signature.parameters.size());
  model->output_tensors.resize(signature.results.size());
  model->results.resize(signature.results.size());
  model->donor_of_output.assign(signature.results.size(), -1);
  for (size_t i = 0; i < signature.parameters.size(); ++i) {
    int output = signature.parameters[i].aliased_output;
    if (output >= 0) model->donor_of_output[static_cast<size_t>(output)] = static_cast<int>(i);
  }
  return true;
}

void Destroy(const Model& model) {
  if (model.executable != nullptr) model.core->plugin->Destroy(model.executable);
  for (Storage* vector : model.vectors) vector->Release();
}

neuroncore_buffer_t BufferOf(const TensorType& type) {
  return {nullptr, static_cast<int32_t>(type.element_type), static_cast<int32_t>(type.dims.size()), type.dims.data()};
}

// Where the program is one kernel. Its result has a parameter that carries memory for it: the operand that it updates,
// or a scratch one.
void PrepareKernel(std::string_view program, Model* model) {
  ProgramSignature& signature = model->signature;
  int updated = -1;
  for (size_t i = 0; i < signature.parameters.size(); ++i) {
    if (signature.parameters[i].type.bytes == 0) return;
    if (i < signature.num_inputs && signature.parameters[i].aliased_output >= 0) updated = static_cast<int>(i);
  }
  std::optional<KernelProgram> parsed = ParseKernelProgram(program, signature);
  const ptrdiff_t kernel = parsed ? FindKernel(parsed->name) : -1;
  if (kernel < 0) return;
  if (updated >= 0) {
    const int operand = parsed->updated_operand;
    if (operand < 0 || parsed->operands[static_cast<size_t>(operand)].parameter != static_cast<size_t>(updated)) return;
  }
  Model::KernelCall& call = model->kernel.emplace();
  call.program = std::move(*parsed);
  call.kernel = static_cast<size_t>(kernel);
  for (const KernelProgram::Operand& operand : call.program.operands) call.operands.push_back(BufferOf(operand.type));
  call.result = BufferOf(call.program.result);
  if (updated < 0 && signature.parameters.size() == signature.num_inputs) {
    Parameter& scratch = signature.parameters.emplace_back();
    scratch.type = signature.results[0];
    scratch.aliased_output = 0;
    scratch.scratch = true;
  }
}

NRT_STATUS Load(const char* function, const void* neff, size_t size, int32_t vnc, int32_t vnc_count,
                nrt_model_t** handle) {
  if (NRT_STATUS status = CheckRunning(function)) return status;
  if (neff == nullptr || handle == nullptr) return Fail(NRT_INVALID, "%s: null argument", function);
  if (vnc_count != -1 && vnc_count != 1) {
    return Fail(NRT_INVALID, "%s: a model runs on one core, not on %d", function, vnc_count);
  }
  Core* core = GetCore(function, vnc == -1 ? 0 : vnc);
  if (core == nullptr) return NRT_INVALID;
  NeffView view;
  if (int status = ReadNeff({static_cast<const char*>(neff), size}, &view)) return static_cast<NRT_STATUS>(status);
  const Plugin& plugin = *core->plugin;
  if (view.fingerprint != plugin.fingerprint()) {
    return Fail(NRT_UNSUPPORTED_NEFF_VERSION,
                "this NEFF was compiled by or for something else; compile it again (it: %s; here: %s)",
                std::string(view.fingerprint).c_str(), plugin.fingerprint().c_str());
  }
  ProgramSignature signature;
  if (!ParseSignature(view.program, &signature)) return NRT_INVALID;
  Model loaded;
  loaded.core = core;
  loaded.signature = std::move(signature);
  PrepareKernel(view.program, &loaded);
  if (!loaded.kernel) {
    // A plugin that cannot serialize leaves the program text only.
    loaded.executable = view.executable.empty()
                            ? CompileProgram(plugin, std::string(view.program), loaded.signature, /*optimize_level=*/1)
                            : plugin.Deserialize(view.executable.data(), view.executable.size());
    if (loaded.executable == nullptr) return NRT_FAILURE;
  }
  if (!PrepareLaunches(view.program, &loaded)) {
    Destroy(loaded);
    return NRT_RESOURCE;
  }
  Model* model = Models().New();
  *model = std::move(loaded);
  model->magic = kModelMagic;
  *handle = reinterpret_cast<nrt_model_t*>(model);
  return NRT_SUCCESS;
}

void Describe(nrt_tensor_info_t* info, const char* prefix, size_t index, nrt_tensor_usage_t usage,
              const TensorType& type) {
  snprintf(info->name, sizeof(info->name), "%s%zu", prefix, index);
  info->usage = usage;
  info->size = type.bytes;
  info->dtype = DtypeOf(type.element_type);
  info->ndim = static_cast<uint32_t>(type.dims.size());
  info->shape = static_cast<uint32_t*>(calloc(type.dims.size() + 1, sizeof(uint32_t)));
  if (info->shape == nullptr) throw std::bad_alloc();
  for (size_t i = 0; i < type.dims.size(); ++i) info->shape[i] = static_cast<uint32_t>(type.dims[i]);
}

}  // namespace

pjrt::LoadedExecutable* CompileProgram(const Plugin& plugin, const std::string& program,
                                       const ProgramSignature& signature, int optimize_level) {
  return plugin.Compile(PackedProgram(program, signature, PackParameters(program, signature)),
                        ChoicesFor(program, signature, optimize_level));
}

Model* GetModel(const char* function, const void* handle) {
  auto* model = static_cast<Model*>(const_cast<void*>(handle));
  if (model != nullptr && model->magic == kModelMagic) return model;
  Fail(NRT_INVALID_HANDLE, model == nullptr ? "%s: null model" : "%s: not a loaded model", function);
  return nullptr;
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS nrt_load(const void* neff, size_t size, int32_t vnc, int32_t vnc_count,
                                      nrt_model_t** model) {
  return Guarded("nrt_load", [&] { return Load("nrt_load", neff, size, vnc, vnc_count, model); });
}

NEURONCORE_EXPORT NRT_STATUS nrt_load_collectives(const void* neff, size_t size, int32_t vnc, int32_t vnc_count,
                                                  uint32_t device_id, uint32_t device_count, nrt_model_t** model) {
  return Guarded("nrt_load_collectives", [&]() -> NRT_STATUS {
    if (NRT_STATUS status = nrt_build_global_comm(vnc == -1 ? 0 : vnc, device_id, device_count)) return status;
    return Load("nrt_load_collectives", neff, size, vnc, vnc_count, model);
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_unload(nrt_model_t* handle) {
  return Guarded("nrt_unload", [&]() -> NRT_STATUS {
    if (Plugin::forked()) return Plugin::FailForked("nrt_unload");
    // Also after nrt_close: a process releases its models in any order.
    Model* model = GetModel("nrt_unload", handle);
    if (model == nullptr) return NRT_INVALID_HANDLE;
    {
      std::lock_guard idle(model->core->execution);
      model->magic = 0;
      Destroy(*model);
    }
    Models().Free(model);
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_model_info(const nrt_model_t* handle, nrt_model_info_t* info, size_t size_in,
                                                size_t* size_out) {
  Model* model = GetModel("nrt_get_model_info", handle);
  if (model == nullptr) return NRT_INVALID_HANDLE;
  if (info == nullptr) return Fail(NRT_INVALID, "nrt_get_model_info: null argument");
  nrt_model_info_t ours = {static_cast<uint32_t>(model->core->index)};
  size_t written = std::min(size_in, sizeof(ours));
  memcpy(info, &ours, written);
  if (size_out != nullptr) *size_out = written;
  return NRT_SUCCESS;
}

namespace {

NRT_STATUS One(const char* function, const nrt_model_t* handle, uint32_t* count) {
  if (GetModel(function, handle) == nullptr) return NRT_INVALID_HANDLE;
  if (count == nullptr) return Fail(NRT_INVALID, "%s: null argument", function);
  *count = 1;
  return NRT_SUCCESS;
}

}  // namespace

NEURONCORE_EXPORT NRT_STATUS nrt_get_model_instance_count(nrt_model_t* model, uint32_t* count) {
  return One("nrt_get_model_instance_count", model, count);
}
NEURONCORE_EXPORT NRT_STATUS nrt_get_model_nc_count(const nrt_model_t* model, uint32_t* count) {
  return One("nrt_get_model_nc_count", model, count);
}
NEURONCORE_EXPORT NRT_STATUS nrt_get_model_vnc_count(const nrt_model_t* model, uint32_t* count) {
  return One("nrt_get_model_vnc_count", model, count);
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* handle, nrt_tensor_info_array_t** info) {
  return Guarded("nrt_get_model_tensor_info", [&]() -> NRT_STATUS {
    Model* model = GetModel("nrt_get_model_tensor_info", handle);
    if (model == nullptr) return NRT_INVALID_HANDLE;
    if (info == nullptr) return Fail(NRT_INVALID, "nrt_get_model_tensor_info: null argument");
    const ProgramSignature& signature = model->signature;
    size_t count = signature.num_inputs + signature.results.size();
    auto* array = static_cast<nrt_tensor_info_array_t*>(
        calloc(1, sizeof(nrt_tensor_info_array_t) + count * sizeof(nrt_tensor_info_t)));
    if (array == nullptr) throw std::bad_alloc();
    array->tensor_count = count;
    nrt_tensor_info_t* next = array->tensor_array;
    for (size_t i = 0; i < signature.num_inputs; ++i) {
      Describe(next++, "input", i, NRT_TENSOR_USAGE_INPUT, signature.parameters[i].type);
    }
    for (size_t i = 0; i < signature.results.size(); ++i) {
      Describe(next++, "output", i, NRT_TENSOR_USAGE_OUTPUT, signature.results[i]);
    }
    *info = array;
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info) {
  if (info == nullptr) return Fail(NRT_INVALID, "nrt_free_model_tensor_info: null argument");
  for (uint64_t i = 0; i < info->tensor_count; ++i) free(info->tensor_array[i].shape);
  free(info);
  return NRT_SUCCESS;
}
