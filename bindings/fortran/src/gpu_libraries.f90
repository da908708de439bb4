! Matrix products, Fourier transforms and linear systems on buffers, in place: by cuBLAS, cuFFT and cuSOLVER on a CUDA device, by rocBLAS,
! rocFFT and rocSOLVER on a HIP device, by the CPU on the host. Matrices are column-major, like Fortran's.
module gpu_libraries
  use, intrinsic :: iso_fortran_env, only: int32, int64, real64
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed
  use gpu_session, only: session, need_device
  use gpu_buffer_core, only: unified_buffer, buffer_handle
  implicit none
  private
  public :: matrix_factors, gpu_gemm, gpu_fft, gpu_lu_factor, gpu_lu_solve, gpu_lu_invert
  public :: factors_are_valid, destroy_factors
  public :: NUMBER_REAL32, NUMBER_REAL64, NUMBER_COMPLEX32, NUMBER_COMPLEX64
  public :: OP_NONE, OP_TRANSPOSE, OP_ADJOINT

  ! The element type of matrices and signals.
  integer, parameter :: NUMBER_REAL32 = 0
  integer, parameter :: NUMBER_REAL64 = 1
  integer, parameter :: NUMBER_COMPLEX32 = 2
  integer, parameter :: NUMBER_COMPLEX64 = 3

  ! What is done to a matrix before it is used.
  integer, parameter :: OP_NONE = 0
  integer, parameter :: OP_TRANSPOSE = 1
  integer, parameter :: OP_ADJOINT = 2

  ! The row permutation of a factored matrix. Assigned variables share it.
  type :: matrix_factors
    private
    type(onebuf_lu) :: handle
    integer :: device = 1
  contains
    procedure, private :: assign
    generic :: assignment(=) => assign
    final :: finish
  end type

  interface gpu_gemm
    module procedure gemm_int32, gemm_int64
  end interface

  interface gpu_fft
    module procedure fft_int32, fft_int64
  end interface

  interface gpu_lu_factor
    module procedure factor_int32, factor_int64
  end interface

  interface gpu_lu_solve
    module procedure solve_int32, solve_int64
  end interface

contains

  ! C = alpha op(A) op(B) + beta C, where op(A) is m x k, op(B) is k x n, C is m x n. Without beta the contents of C do not matter.
  subroutine gemm_int64(a, b, c, m, n, k, number, op_a, op_b, alpha, beta, stat, errmsg, device)
    type(unified_buffer), intent(in) :: a, b, c
    integer(int64), intent(in) :: m, n, k
    integer, intent(in) :: number
    integer, intent(in), optional :: op_a, op_b
    complex(real64), intent(in), optional, target :: alpha, beta
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'gpu_gemm'
    type(onebuf_gemm_options) :: options
    integer(c_int32_t) :: status
    integer :: on

    on = ready(me, [buffer_handle(a), buffer_handle(b), buffer_handle(c)], [m, n, k], device, stat, errmsg)
    if (on == 0) return
    options%size = int(storage_size(options)/8, c_size_t)
    options%number = int(number, c_int32_t)
    if (present(op_a)) options%op_a = int(op_a, c_int32_t)
    if (present(op_b)) options%op_b = int(op_b, c_int32_t)
    options%m = int(m, c_size_t)
    options%n = int(n, c_size_t)
    options%k = int(k, c_size_t)
    if (present(alpha)) options%alpha = c_loc(alpha)
    if (present(beta)) options%beta = c_loc(beta)
    status = onebuf_gemm(session%queues(on), options, buffer_handle(a), buffer_handle(b), buffer_handle(c))
    call report(status, me, stat, errmsg)
  end subroutine

  subroutine gemm_int32(a, b, c, m, n, k, number, op_a, op_b, alpha, beta, stat, errmsg, device)
    type(unified_buffer), intent(in) :: a, b, c
    integer(int32), intent(in) :: m, n, k
    integer, intent(in) :: number
    integer, intent(in), optional :: op_a, op_b
    complex(real64), intent(in), optional, target :: alpha, beta
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device

    call gemm_int64(a, b, c, int(m, int64), int(n, int64), int(k, int64), number, op_a, op_b, alpha, beta, stat, errmsg, &
      device)
  end subroutine

  ! Transforms `batch` complex signals of `length` samples, stored one after another, from one buffer into another, or in place if both
  ! are the same. The result is not divided by the length.
  subroutine fft_int64(from, to, length, number, inverse, batch, stat, errmsg, device)
    type(unified_buffer), intent(in) :: from, to
    integer(int64), intent(in) :: length
    integer, intent(in) :: number
    logical, intent(in), optional :: inverse
    integer, intent(in), optional :: batch
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'gpu_fft'
    type(onebuf_fft_options) :: options
    integer :: on

    options%batch = 1
    if (present(batch)) options%batch = int(batch, c_size_t)
    on = ready(me, [buffer_handle(from), buffer_handle(to)], [length, int(options%batch, int64)], device, stat, &
      errmsg)
    if (on == 0) return
    options%size = int(storage_size(options)/8, c_size_t)
    options%number = int(number, c_int32_t)
    options%len = int(length, c_size_t)
    if (present(inverse)) options%inverse = merge(1, 0, inverse)
    call report(onebuf_fft(session%queues(on), options, buffer_handle(from), buffer_handle(to)), me, stat, errmsg)
  end subroutine

  subroutine fft_int32(from, to, length, number, inverse, batch, stat, errmsg, device)
    type(unified_buffer), intent(in) :: from, to
    integer(int32), intent(in) :: length
    integer, intent(in) :: number
    logical, intent(in), optional :: inverse
    integer, intent(in), optional :: batch
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device

    call fft_int64(from, to, int(length, int64), number, inverse, batch, stat, errmsg, device)
  end subroutine

  ! Replaces the n x n matrix by its LU factors. Waits for the device.
  subroutine factor_int64(a, n, number, factors, stat, errmsg, device)
    type(unified_buffer), intent(in) :: a
    integer(int64), intent(in) :: n
    integer, intent(in) :: number
    type(matrix_factors), intent(inout), target :: factors
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'gpu_lu_factor'
    type(onebuf_lu) :: made
    integer(c_int32_t) :: status
    integer :: on

    on = ready(me, [buffer_handle(a)], [n], device, stat, errmsg)
    if (on == 0) return
    status = onebuf_lu_factor(session%queues(on), int(number, c_int32_t), int(n, c_size_t), 0_c_size_t, &
      buffer_handle(a), made)
    if (status == ONEBUF_OK) then
      factors%handle = made
      factors%device = on
      status = onebuf_own(c_loc(factors%handle%id), made%id)
    end if
    call report(status, me, stat, errmsg)
  end subroutine

  subroutine factor_int32(a, n, number, factors, stat, errmsg, device)
    type(unified_buffer), intent(in) :: a
    integer(int32), intent(in) :: n
    integer, intent(in) :: number
    type(matrix_factors), intent(inout), target :: factors
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device

    call factor_int64(a, int(n, int64), number, factors, stat, errmsg, device)
  end subroutine

  ! Solves op(A) X = B, with the factors of A in `a`: replaces the columns of `b` by the solutions.
  subroutine solve_int64(factors, a, b, columns, op, stat, errmsg)
    type(matrix_factors), intent(in) :: factors
    type(unified_buffer), intent(in) :: a, b
    integer(int64), intent(in) :: columns
    integer, intent(in), optional :: op
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'gpu_lu_solve'
    integer(c_int32_t) :: how
    integer :: on

    on = ready(me, [buffer_handle(a), buffer_handle(b)], [columns], factors%device, stat, errmsg)
    if (on == 0) return
    how = OP_NONE
    if (present(op)) how = int(op, c_int32_t)
    call report(onebuf_lu_solve(session%queues(on), factors%handle, how, buffer_handle(a), int(columns, c_size_t), &
      0_c_size_t, buffer_handle(b)), me, stat, errmsg)
  end subroutine

  subroutine solve_int32(factors, a, b, columns, op, stat, errmsg)
    type(matrix_factors), intent(in) :: factors
    type(unified_buffer), intent(in) :: a, b
    integer(int32), intent(in) :: columns
    integer, intent(in), optional :: op
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call solve_int64(factors, a, b, int(columns, int64), op, stat, errmsg)
  end subroutine

  ! Writes the inverse of the matrix whose factors are in `a` into another buffer.
  subroutine gpu_lu_invert(factors, a, inverse, stat, errmsg)
    type(matrix_factors), intent(in) :: factors
    type(unified_buffer), intent(in) :: a, inverse
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(*), parameter :: me = 'gpu_lu_invert'
    integer :: on

    on = ready(me, [buffer_handle(a), buffer_handle(inverse)], [1_int64], factors%device, stat, errmsg)
    if (on == 0) return
    call report(onebuf_lu_invert(session%queues(on), factors%handle, buffer_handle(a), buffer_handle(inverse)), me, &
      stat, errmsg)
  end subroutine

  ! Whether the variable holds the factors of a matrix.
  function factors_are_valid(factors, stat, errmsg) result(valid)
    type(matrix_factors), intent(in) :: factors
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = factors%handle%id /= 0
    call succeed(stat, errmsg)
  end function

  ! Releases the row permutation. The factors stay in the buffer.
  subroutine destroy_factors(factors, stat, errmsg)
    type(matrix_factors), intent(inout), target :: factors
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_own(c_loc(factors%handle%id), 0_c_int64_t), 'destroy_factors', stat, errmsg)
    factors%handle%id = 0
  end subroutine

  ! Ends the CPU's access to the buffers, and returns the device's number; 0 if something is wrong, which has been reported.
  function ready(me, buffers, sizes, device, stat, errmsg) result(on)
    character(*), intent(in) :: me
    type(onebuf_buffer), intent(in) :: buffers(:)
    integer(int64), intent(in) :: sizes(:)
    integer, intent(in), optional :: device
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: on
    integer(c_int32_t) :: status
    integer :: i

    on = 0
    if (any(sizes < 1)) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': sizes are positive', stat, errmsg)
      return
    end if
    on = need_device(me, device, stat, errmsg, returns=.false.)
    if (on == 0) return
    do i = 1, size(buffers)
      status = onebuf_buffer_to_device(buffers(i))
      if (status == ONEBUF_OK) cycle
      call report(status, me, stat, errmsg)
      on = 0
      return
    end do
  end function

  ! The comment on unified_buffer explains why this is sufficient.
  impure elemental subroutine assign(to, from)
    class(matrix_factors), intent(out), target :: to
    class(matrix_factors), intent(in) :: from

    call report(onebuf_own(c_loc(to%handle%id), from%handle%id), 'assigning matrix_factors')
    to%handle = from%handle
    to%device = from%device
  end subroutine

  impure elemental subroutine finish(factors)
    type(matrix_factors), intent(inout), target :: factors

    call report(onebuf_disown(c_loc(factors%handle%id)), 'ending matrix_factors')
  end subroutine
end module
