! Kernels in Fortran, for the host: their interface, and the arguments of a launch.
module gpu_native_kernels
  use onebuf_c
  use gpu_errors, only: refuse, succeed
  implicit none
  private
  public :: native_kernel, onebuf_native_call, native_argument, native_arg

  ! An argument of a launch: the buffer's bytes, or the value.
  type :: native_arg
    type(c_ptr) :: data = c_null_ptr
    integer(c_size_t) :: bytes = 0
    logical :: writable = .false.
  end type

  abstract interface
    ! A kernel in Fortran, for the host: called once for a whole launch. It returns zero on success.
    function native_kernel(user, launch) bind(c)
      import :: c_int32_t, c_ptr, onebuf_native_call
      type(c_ptr), value :: user
      type(onebuf_native_call), intent(in) :: launch
      integer(c_int32_t) :: native_kernel
    end function
  end interface

contains

  ! An argument of a kernel in Fortran, counted from 1, in the order of `bindings`, integers and reals. Without data if there is none.
  function native_argument(launch, index, stat, errmsg) result(argument)
    type(onebuf_native_call), intent(in) :: launch
    integer, intent(in) :: index
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(native_arg) :: argument
    type(onebuf_native_arg), pointer :: all(:)

    if (index < 1 .or. index > launch%arg_count) then
      call refuse(ONEBUF_INVALID_ARGUMENT, 'native_argument: the kernel has no argument of this number', stat, errmsg, &
        returns=.true.)
      return
    end if
    call succeed(stat, errmsg)
    call c_f_pointer(launch%args, all, [launch%arg_count])
    argument%data = all(index)%data
    argument%bytes = all(index)%bytes
    argument%writable = all(index)%writable /= 0
  end function
end module
