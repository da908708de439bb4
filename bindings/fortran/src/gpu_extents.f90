! Numbers of work-items in one to three dimensions, of either integer kind. For the modules that launch.
module gpu_extents
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c, only: onebuf_grid, c_size_t
  implicit none
  private
  public :: extents, extents_of, tell_sizes

  ! The grid of a launch. Without dimensions of a group the driver chooses.
  type :: extents
    type(onebuf_grid) :: grid
    integer :: group_dims = 0
    ! Whether there are one to three dimensions, in each of them at least one work-item, and groups of as many.
    logical :: fit = .true.
  end type

  ! Each of `work_items` and `group` as int32 and as int64.
  interface extents_of
    module procedure of_int32, of_int64, of_int32_int64, of_int64_int64
  end interface

contains

  pure function of_int32(work_items, group) result(made)
    integer(int32), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: group(:)
    type(extents) :: made
    integer :: i

    made%grid%dims = size(work_items, kind=c_size_t)
    do i = 1, min(size(work_items), 3)
      made%grid%global(i) = int(work_items(i), c_size_t)
    end do
    if (present(group)) then
      made%group_dims = size(group)
      do i = 1, min(size(group), 3)
        made%grid%local(i) = int(group(i), c_size_t)
      end do
    end if
    call check(made)
  end function

  pure function of_int64(work_items, group) result(made)
    integer(int64), intent(in) :: work_items(:)
    integer(int32), intent(in), optional :: group(:)
    type(extents) :: made

    if (present(group)) then
      made = of_int64_int64(work_items, int(group, int64))
    else
      made = of_int64_int64(work_items, [integer(int64) ::])
    end if
  end function

  pure function of_int32_int64(work_items, group) result(made)
    integer(int32), intent(in) :: work_items(:)
    integer(int64), intent(in) :: group(:)
    type(extents) :: made

    made = of_int64_int64(int(work_items, int64), group)
  end function

  pure function of_int64_int64(work_items, group) result(made)
    integer(int64), intent(in) :: work_items(:), group(:)
    type(extents) :: made
    integer :: i

    made%grid%dims = size(work_items, kind=c_size_t)
    do i = 1, min(size(work_items), 3)
      made%grid%global(i) = int(work_items(i), c_size_t)
    end do
    made%group_dims = size(group)
    do i = 1, min(size(group), 3)
      made%grid%local(i) = int(group(i), c_size_t)
    end do
    call check(made)
  end function

  pure subroutine check(made)
    type(extents), intent(inout) :: made
    integer :: i

    made%fit = made%grid%dims >= 1 .and. made%grid%dims <= 3 .and. &
      (made%group_dims == 0 .or. made%group_dims == made%grid%dims)
    if (.not. made%fit) return
    do i = 1, int(made%grid%dims)
      if (made%grid%global(i) < 1) made%fit = .false.
    end do
    do i = 1, made%group_dims
      if (made%grid%local(i) < 1) made%fit = .false.
    end do
  end subroutine

  ! Says what does not fit, if something does not.
  pure subroutine tell_sizes(of, wrong)
    type(extents), intent(in) :: of
    character(*), intent(inout) :: wrong
    integer :: items, groups

    if (of%fit) return
    items = int(min(of%grid%dims, 3_c_size_t))
    groups = min(of%group_dims, 3)
    if (of%grid%dims < 1 .or. of%grid%dims > 3) wrong = 'work-items have one to three dimensions'
    if (any(of%grid%global(:items) < 1)) wrong = 'at least one work-item in each dimension'
    if (of%group_dims == 0) return
    if (of%group_dims /= of%grid%dims) wrong = 'groups have as many dimensions as the work-items'
    if (any(of%grid%local(:groups) < 1)) wrong = 'at least one work-item in each dimension of a group'
  end subroutine
end module
