// SPDX-License-Identifier: Apache-2.0
#include "registration.h"

#include <Python.h>

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "../nrt/gil.h"
#include "dispatch.h"
#include "python_values.h"

namespace neuron {
namespace {

// All entries, by overload. Leaked, like everything that launches may refer to.
struct Entries {
  std::mutex mutex;
  ska::flat_hash_map<c10::OperatorName, std::unique_ptr<OperatorEntry>> by_name;
};
Entries& entries() {
  static auto* all = new Entries;
  return *all;
}

// Registers for good. Straight with the dispatcher: torch::Library parses every name again, which for more than a
// thousand overloads takes a tenth of a second.
void register_kernel(const c10::OperatorHandle& handle, c10::DispatchKey key, c10::KernelFunction kernel) {
  static auto* registered = new std::vector<c10::RegistrationHandleRAII>;
  registered->push_back(c10::Dispatcher::singleton().registerImpl(
      handle.operator_name(), key, std::move(kernel), std::nullopt, nullptr, "registered by torch_neuronx"));
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(OperatorEntry& entry) : entry_(entry) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_operator(entry_, stack);
  }

 private:
  OperatorEntry& entry_;
};

bool wants_gradient(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined() && tensor.requires_grad()) return true;
    }
  }
  return false;
}

// Set where a tracer or a subclass wants to see the operators that a composite consists of.
constexpr c10::DispatchKeySet kTracers({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                        c10::DispatchKey::Functionalize});

// A composite operator: whole where nothing is differentiated or traced, else as PyTorch decomposes it.
class WholeKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t count = handle.schema().arguments().size();
    bool decomposed = keys.has_any(kTracers);
    if (c10::GradMode::is_enabled()) {
      for (size_t i = 0; i < count && !decomposed; ++i) {
        decomposed = wants_gradient(torch::jit::peek(*stack, i, count));
      }
    }
    if (decomposed) {
      handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    } else {
      const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
      handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
    }
  }
};

void run_unregistered(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_operator(operator_entry(handle), stack);
}

OperatorEntry& enter(const c10::OperatorHandle& handle, std::unique_ptr<OperatorEntry> entry) {
  Entries& all = entries();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& place = all.by_name[handle.operator_name()];
  if (!place) place = std::move(entry);
  return *place;
}

OperatorEntry* find_entry(const c10::OperatorHandle& handle) {
  Entries& all = entries();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.by_name.find(handle.operator_name());
  return found == all.by_name.end() ? nullptr : found->second.get();
}

std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.find('.');
  return {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

Lengths lengths_of(const std::string& name) {
  return name == "shared" ? Lengths::Shared : name == "each" ? Lengths::Each : Lengths::Exact;
}

std::vector<std::string> logged(std::atomic<bool> OperatorEntry::* flag) {
  Entries& all = entries();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, entry] : all.by_name) {
    if (((*entry).*flag).load()) names.push_back(entry->log_name());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

void register_operator(const std::string& name, const std::string& log_name, const std::vector<std::string>& statics,
                       const std::vector<std::string>& updated, const std::vector<std::string>& written, bool whole,
                       bool with_kernel, const std::string& lengths) {
  const auto [base, overload] = split_name(name);
  const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
  OperatorEntry& entry =
      enter(handle, std::make_unique<OperatorEntry>(handle, log_name, statics, updated, written, lengths_of(lengths)));
  if (!with_kernel) return;
  register_kernel(handle, c10::DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(entry)));
  if (whole) {
    register_kernel(handle, c10::DispatchKey::AutogradPrivateUse1,
                    c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<WholeKernel>()));
  }
}

OperatorEntry& operator_entry(const c10::OperatorHandle& handle) {
  if (OperatorEntry* entry = find_entry(handle)) return *entry;
  // Nothing is known of the operator but its schema: it mutates what that says, and its numbers end up as
  // constants of a decomposition, so they belong to the key.
  std::vector<std::string> statics, updated, written;
  for (const c10::Argument& argument : handle.schema().arguments()) {
    statics.push_back(argument.name());
    if (!argument.alias_info() || !argument.alias_info()->isWrite()) continue;
    (argument.is_out() ? written : updated).push_back(argument.name());
  }
  const c10::FunctionSchema& schema = handle.schema();
  const std::string name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  return enter(handle, std::make_unique<OperatorEntry>(handle, name, statics, updated, written));
}

void register_fallback() {
  static auto* fallback =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run_unregistered>());
}

std::vector<std::string> executed_operators() { return logged(&OperatorEntry::executed); }
std::vector<std::string> fallback_operators() { return logged(&OperatorEntry::fell_back); }

void clear_operator_log() {
  Entries& all = entries();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [name, entry] : all.by_name) {
    entry->executed = false;
    entry->fell_back = false;
  }
}

void ensure_operators_registered() {
  static std::atomic<bool> registered{false};
  if (registered.load(std::memory_order_acquire)) return;
  static auto* mutex = new std::recursive_mutex;
  const GilRelease released;  // the thread that registers needs the interpreter
  std::lock_guard<std::recursive_mutex> lock(*mutex);
  static bool begun = false;  // importing the table may come here again
  if (begun) return;
  begun = true;
  {
    const InterpreterLock interpreter;
    PythonObject module = owned(PyImport_ImportModule("torch_neuronx.eager"));
    owned(PyObject_CallMethod(module.get(), "register", nullptr));
  }
  registered.store(true, std::memory_order_release);
}

}  // namespace neuron
