! The same procedures for arrays of six element types: each module includes typed.inc once. There, names that begin with
! d have the element type. gpu_unified_buffers combines the generic names of all six.

module gpu_typed_real32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit real(real32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_real64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit real(real64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_int32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit integer(int32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_int64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit integer(int64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_complex32
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit complex(real32) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module

module gpu_typed_complex64
  use, intrinsic :: iso_c_binding, only: c_associated, c_f_pointer, c_loc, c_ptr
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use gpu_buffer_core
  use gpu_batches, only: write_batch, add_elements
  implicit complex(real64) (d)
  private
  include 'generics.inc'
contains
  include 'typed.inc'
end module
