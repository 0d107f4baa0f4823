// SPDX-License-Identifier: Apache-2.0
#include <tensor/storage.h>

#include <algorithm>

#include <c10/util/Exception.h>

#include <device/allocator.h>
#include <tensor/transfer.h>

namespace neuron {

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable.");
  const c10::DeviceIndex device = storage.device().index();
  nrt_tensor_t* before = block_of(storage);
  c10::DataPtr fresh = device_allocator().allocate_on(device, bytes);
  auto* after = static_cast<nrt_tensor_t*>(fresh.get());
  const size_t kept = std::min(bytes, storage.nbytes());
  // The old block may be handed out again right away: its next user stands behind this copy.
  copy_block(device, after, 0, before, 0, kept);
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

}  // namespace neuron
