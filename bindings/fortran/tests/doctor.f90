! The doctor, with this program as its helper.
program doctor
  use, intrinsic :: iso_fortran_env, only: int64
  use gpu_unified_buffers
  use checks, only: check
  implicit none
  character(:), allocatable :: json
  integer :: stat
  character(400) :: message

  call gpu_doctor_helper
  json = gpu_run_doctor(reach_bytes=1048576_int64)
  call check(index(json, '"routes"') > 0 .and. index(json, '"experiments"') > 0, 'verdicts: '//json)
  json = gpu_run_doctor(helper='/no/such/program', fresh=.true., stat=stat, errmsg=message)
  call check(stat /= 0 .or. index(json, '"notes"') > 0, 'a helper that does not exist')
  print '(2a)', 'the doctor works: ', gpu_run_doctor()
end program
