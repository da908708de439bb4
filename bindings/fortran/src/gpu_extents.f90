! Numbers of work-items in one to three dimensions, of either integer kind. For the modules that launch.
module gpu_extents
  use, intrinsic :: iso_fortran_env, only: int32, int64
  use onebuf_c, only: onebuf_grid, c_size_t
  implicit none
  private
  public :: extents, extents_of, check_sizes, grid_of

  ! Without dimensions: not given.
  type :: extents
    integer :: dims = 0
    integer(int64) :: sizes(3) = 1
  end type

  interface extents_of
    module procedure of_int32, of_int64
  end interface

contains

  pure function of_int32(list) result(made)
    integer(int32), intent(in), optional :: list(:)
    type(extents) :: made
    integer :: i

    if (.not. present(list)) return
    made%dims = size(list)
    do i = 1, min(made%dims, 3)
      made%sizes(i) = int(list(i), int64)
    end do
  end function

  pure function of_int64(list) result(made)
    integer(int64), intent(in) :: list(:)
    type(extents) :: made
    integer :: i

    made%dims = size(list)
    do i = 1, min(made%dims, 3)
      made%sizes(i) = list(i)
    end do
  end function

  ! Sets `wrong` if something is.
  subroutine check_sizes(work_items, group, wrong)
    type(extents), intent(in) :: work_items, group
    character(*), intent(inout) :: wrong

    if (work_items%dims < 1 .or. work_items%dims > 3) wrong = 'work-items have one to three dimensions'
    if (any(work_items%sizes < 1)) wrong = 'at least one work-item in each dimension'
    if (group%dims == 0) return
    if (group%dims /= work_items%dims) wrong = 'groups have as many dimensions as the work-items'
    if (any(group%sizes < 1)) wrong = 'at least one work-item in each dimension of a group'
  end subroutine

  ! Without a group the driver chooses.
  pure function grid_of(work_items, group) result(grid)
    type(extents), intent(in) :: work_items, group
    type(onebuf_grid) :: grid

    grid%dims = int(work_items%dims, c_size_t)
    grid%global = int(work_items%sizes, c_size_t)
    if (group%dims > 0) grid%local(:group%dims) = int(group%sizes(:group%dims), c_size_t)
  end function
end module
