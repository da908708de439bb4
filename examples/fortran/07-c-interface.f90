! A call of the C interface, for what has no Fortran module: here the ledger, which lists copies by their cause.
program c_interface
  use, intrinsic :: iso_fortran_env, only: real32
  use onebuf_c, only: onebuf_ledger_text, onebuf_string
  use gpu_session, only: session
  use gpu_errors, only: report, taken_text
  use gpu_unified_buffers
  implicit none
  type(unified_buffer) :: b
  type(onebuf_string) :: text
  real(real32) :: x(1024)

  x = 1
  b = create_unified_buffer(4*size(x), BUFFER_READ_WRITE)
  call write_buffer(b, x)
  call report(onebuf_ledger_text(session%hub, text), 'the ledger')   ! stops the program if the call fails
  print '(3a)', 'the ledger on ', gpu_device_name(), ':'
  print '(a)', taken_text(text)                                      ! frees the string, too
end program
