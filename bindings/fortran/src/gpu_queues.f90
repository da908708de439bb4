! Several queues of one device, so that independent dispatches run at the same time. Buffers order the work where necessary.
module gpu_queues
  use onebuf_c
  use gpu_errors, only: report, refuse, succeed, is_unused
  use gpu_session, only: session, need_device, use_queue
  implicit none
  private
  public :: queue_pool, create_queue_pool, next_queue, least_busy_queue, finish_queue_pool, destroy_queue_pool
  public :: queue_pool_is_valid

  ! A pool, until destroy_queue_pool.
  type :: queue_pool
    private
    type(onebuf_queue_pool) :: handle
    integer :: device = 0
  end type

contains

  ! Opens `count` queues of a device, the first one without a number.
  subroutine create_queue_pool(pool, count, stat, errmsg, device)
    type(queue_pool), intent(inout) :: pool
    integer, intent(in) :: count
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer, intent(in), optional :: device
    character(*), parameter :: me = 'create_queue_pool'
    type(onebuf_queue_options) :: options
    integer :: number

    if (.not. is_unused(pool%handle%id, me, 'a pool: destroy it first', stat, errmsg)) return
    if (count < 1) then
      call refuse(ONEBUF_INVALID_ARGUMENT, me//': at least one queue', stat, errmsg)
    else
      number = need_device(me, device, stat, errmsg, returns=.false.)
      if (number == 0) return
      pool%device = number
      options%size = int(storage_size(options)/8, c_size_t)
      call report(onebuf_queue_pool_create(session%devices(number), int(count, c_size_t), options, pool%handle), me, stat, &
        errmsg)
    end if
  end subroutine

  ! Dispatches to the device, and fences of it, use the next queue of the pool from now on.
  subroutine next_queue(pool, stat, errmsg)
    type(queue_pool), intent(in) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status

    status = onebuf_queue_pool_next(pool%handle, queue)
    if (status == ONEBUF_OK) call use_queue(pool%device, queue)
    call report(status, 'next_queue', stat, errmsg)
  end subroutine

  ! The same, with the queue that has the least unfinished work.
  subroutine least_busy_queue(pool, stat, errmsg)
    type(queue_pool), intent(in) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_queue) :: queue
    integer(c_int32_t) :: status

    status = onebuf_queue_pool_least_busy(pool%handle, queue)
    if (status == ONEBUF_OK) call use_queue(pool%device, queue)
    call report(status, 'least_busy_queue', stat, errmsg)
  end subroutine

  ! Waits for all work on the pool's queues.
  subroutine finish_queue_pool(pool, stat, errmsg)
    type(queue_pool), intent(in) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_queue_pool_finish(pool%handle), 'finish_queue_pool', stat, errmsg)
  end subroutine

  ! Releases the pool. The queue in use stays.
  subroutine destroy_queue_pool(pool, stat, errmsg)
    type(queue_pool), intent(inout) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg

    call report(onebuf_queue_pool_free(pool%handle), 'destroy_queue_pool', stat, errmsg)
    pool%handle%id = 0
  end subroutine

  ! Whether the variable holds a pool.
  function queue_pool_is_valid(pool, stat, errmsg) result(valid)
    type(queue_pool), intent(in) :: pool
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: valid

    valid = pool%handle%id /= 0
    call succeed(stat, errmsg)
  end function
end module
