// SPDX-License-Identifier: Apache-2.0
#include <distributed/bindings.h>

#include <array>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <distributed/network_transport.h>
#include <distributed/process_group.h>
#include <distributed/program_collectives.h>
#include <distributed/shared_segment.h>
#include <distributed/shared_transport.h>
#include <nrt/gil.h>

namespace neuron {
namespace {

namespace py = pybind11;
using distributed::Connection;
using distributed::GroupName;
using distributed::ProcessGroupNeuron;
using distributed::SharedSegment;
using distributed::Socket;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

// Null when the ranks are on several hosts.
BackendPointer create_on_one_host(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout, const std::string& name,
                                  const std::vector<int64_t>& global_ranks) {
  const GilRelease no_gil;
  std::shared_ptr<SharedSegment> segment = SharedSegment::attach(*store, rank, size, timeout);
  if (segment == nullptr) return {};
  distributed::provide_collectives_to_programs();
  GroupName group{name, global_ranks};
  auto transport = std::make_shared<distributed::SharedTransport>(std::move(segment), group);
  return ProcessGroupNeuron::create(std::move(transport), std::move(group), timeout);
}

// Takes the files over. `files` and `processes` have an entry for each rank; what stands in one's own is not used.
BackendPointer create_over_network(int rank, const std::vector<std::array<int, 3>>& files,
                                   const std::vector<std::string>& processes, std::chrono::milliseconds timeout,
                                   const std::string& name, const std::vector<int64_t>& global_ranks) {
  const GilRelease no_gil;
  distributed::provide_collectives_to_programs();
  std::vector<Connection> connections;
  for (size_t r = 0; r < files.size(); ++r)
    connections.push_back({Socket(files[r][0]), Socket(files[r][1]), Socket(files[r][2]), processes[r]});
  GroupName group{name, global_ranks};
  auto transport = std::make_shared<distributed::NetworkTransport>(rank, group, std::move(connections));
  return ProcessGroupNeuron::create(std::move(transport), std::move(group), timeout);
}

// Ordinal, size and global ranks.
std::tuple<int64_t, int, std::vector<int64_t>> describe_group(const std::string& name) {
  const auto group = ProcessGroupNeuron::by_name(name);
  return {group->ordinal(), group->getSize(), group->name().global_ranks};
}

}  // namespace

void bind_distributed(py::module_& m) {
  m.def("create_process_group_on_one_host", torch::wrap_pybind_function(&create_on_one_host));
  m.def("create_process_group_over_network", torch::wrap_pybind_function(&create_over_network));
  m.def("collective_nanoseconds", &ProcessGroupNeuron::collective_nanoseconds);
  m.def("describe_process_group", torch::wrap_pybind_function(&describe_group));
  m.def("shutdown_process_groups", torch::wrap_pybind_function(&ProcessGroupNeuron::shutdown_all));
}

}  // namespace neuron
