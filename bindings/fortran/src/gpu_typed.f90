! The same procedures for arrays of six element types: each module includes typed.inc once. There, names that begin with
! d have the element type. gpu_unified_buffers combines the generic names of all six.

module gpu_typed_real32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit real(real32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_real64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit real(real64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_int32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit integer(int32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_int64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit integer(int64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_complex32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit complex(real32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_complex64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use gpu_buffer_core, only: unified_buffer, buffer_size_bytes, offset_of
  use gpu_buffer_access, only: store_elements, load_elements, open_for_cpu, element_count, timeout_of, NO_TIMEOUT
  use gpu_batches, only: write_batch, add_elements
  use gpu_maps, only: buffer_map, map_elements, map_bytes
  use gpu_transfers, only: buffer_transfer, start_write, transfer_elements, transfer_bytes
  implicit complex(real64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module
