! Matrix products, transforms and linear systems on buffers, against Fortran's own results.
program libraries
  use, intrinsic :: iso_fortran_env
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  integer, parameter :: n = 24
  integer :: on

  call gpu_open
  on = gpu_add_device('host')
  call products
  call transforms
  call systems
  call mistakes
  print '(a)', 'libraries work'

contains

  function filled(a) result(buffer)
    real(real64), intent(in) :: a(:, :)
    type(unified_buffer) :: buffer

    buffer = create_unified_buffer(8*size(a), BUFFER_READ_WRITE)
    call write_buffer(buffer, a)
  end function

  subroutine products
    real(real64) :: a(n, n), b(n, n), c(n, n)
    real(real64), pointer :: found(:, :)
    type(unified_buffer) :: ba, bb, bc

    call random_number(a)
    call random_number(b)
    c = 1
    ba = filled(a)
    bb = filled(b)
    bc = filled(c)
    call gpu_gemm(ba, bb, bc, n, n, n, NUMBER_REAL64, device=on)
    call get_array_pointer(bc, found, [n, n])
    call check(maxval(abs(found - matmul(a, b))) < 1e-12_real64, 'a product')
    ! The pointer's turn ends by itself.
    call gpu_gemm(ba, bb, bc, int(n, int64), int(n, int64), int(n, int64), NUMBER_REAL64, op_a=OP_TRANSPOSE, &
      alpha=(2.0_real64, 0.0_real64), beta=(1.0_real64, 0.0_real64), device=on)
    call get_array_pointer(bc, found, [n, n])
    call check(maxval(abs(found - matmul(a, b) - 2*matmul(transpose(a), b))) < 1e-11_real64, 'a second one is added')
  end subroutine

  subroutine transforms
    complex(real64) :: x(n), y(n)
    type(unified_buffer) :: from, to
    real(real64), parameter :: tau = 8*atan(1.0_real64)
    integer :: j, k

    x = [(cmplx(j, n - j, real64), j=1, n)]
    from = create_unified_buffer(16*n, BUFFER_READ_WRITE)
    to = create_unified_buffer(16*n, BUFFER_READ_WRITE)
    call write_buffer(from, x)
    call gpu_fft(from, to, n, NUMBER_COMPLEX64, device=on)
    call read_buffer(to, y)
    do k = 1, n
      call check(abs(y(k) - sum([(x(j)*exp(cmplx(0, -tau*(j - 1)*(k - 1)/n, real64)), j=1, n)])) < 1e-9_real64, 'a transform')
    end do
    call gpu_fft(to, to, int(n, int64), NUMBER_COMPLEX64, inverse=.true., device=on)
    call read_buffer(to, y)
    call check(maxval(abs(y/n - x)) < 1e-12_real64, 'and back')
  end subroutine

  subroutine systems
    real(real64) :: a(n, n), x(n, 2)
    real(real64), pointer :: found(:, :)
    type(unified_buffer) :: ba, bb, inverse
    type(matrix_factors) :: factors, copy
    integer :: i, stat
    character(300) :: message

    call random_number(a)
    do i = 1, n
      a(i, i) = a(i, i) + n
    end do
    x(:, 1) = [(i, i=1, n)]
    x(:, 2) = -1
    ba = filled(a)
    bb = filled(matmul(a, x))
    call check(.not. factors_are_valid(factors), 'not factored')
    call gpu_lu_factor(ba, n, NUMBER_REAL64, factors, device=on)
    copy = factors
    call destroy_factors(factors)
    call gpu_lu_solve(factors, ba, bb, 2, stat=stat, errmsg=message)
    call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'no factors') > 0, 'destroyed: '//trim(message))
    call gpu_lu_solve(copy, ba, bb, 2)
    call get_array_pointer(bb, found, [n, 2])
    call check(maxval(abs(found - x)) < 1e-10_real64, 'a solution')
    inverse = filled(a)
    call gpu_lu_invert(copy, ba, inverse)
    call get_array_pointer(inverse, found, [n, n])
    call check(maxval(abs(matmul(found, a) - identity())) < 1e-10_real64, 'an inverse')
    call gpu_lu_factor(filled(0*a), int(n, int64), NUMBER_REAL64, factors, stat, message, on)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'a singular matrix')
  end subroutine

  function identity() result(a)
    real(real64) :: a(n, n)
    integer :: i

    a = 0
    do i = 1, n
      a(i, i) = 1
    end do
  end function

  subroutine mistakes
    type(unified_buffer) :: b, none
    integer :: stat
    character(300) :: message

    b = create_unified_buffer(8, BUFFER_READ_WRITE)
    call gpu_gemm(b, b, none, 1, 1, 1, NUMBER_REAL64, stat=stat, errmsg=message, device=on)
    call check(stat == ONEBUF_INVALID_HANDLE .and. index(message, 'no buffer') > 0, trim(message))
    call gpu_gemm(b, b, b, 0, 1, 1, NUMBER_REAL64, stat=stat, errmsg=message, device=on)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'positive') > 0, trim(message))
    call gpu_fft(b, b, 100, NUMBER_COMPLEX64, stat=stat, errmsg=message, device=on)
    call check(stat == ONEBUF_INVALID_ARGUMENT, 'more samples than the buffer has')
    call gpu_fft(b, b, 1, NUMBER_COMPLEX64, stat=stat, errmsg=message, device=9)
    call check(stat == ONEBUF_INVALID_ARGUMENT .and. index(message, 'gpu_add_device') > 0, trim(message))
  end subroutine
end program
