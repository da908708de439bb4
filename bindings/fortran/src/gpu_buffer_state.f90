! What is known about a buffer: its memory, whose turn it is, and when the GPU has finished with it. Nothing here waits or maps.
module gpu_buffer_state
  use onebuf_c
  use gpu_errors, only: report, taken_text
  use gpu_fence_primitives, only: gpu_fence, set_fence
  use gpu_buffer_core, only: unified_buffer, buffer_handle
  implicit none
  private
  public :: buffer_persistent_pointer, buffer_is_mapped, buffer_memory_kind, buffer_is_coherent
  public :: buffer_read_fence, buffer_write_fence, explain_buffer

contains

  ! The CPU's address of the buffer if it is the CPU's turn; null if it is not. Never waits and maps nothing: see get_cpu_pointer.
  function buffer_persistent_pointer(buffer, stat, errmsg) result(address)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(c_ptr) :: address
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_persistent_pointer', stat, errmsg)
    address = state%data
  end function

  ! Whether it is the CPU's turn: whether the buffer is mapped for it.
  function buffer_is_mapped(buffer, stat, errmsg) result(mapped)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: mapped
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_is_mapped', stat, errmsg)
    mapped = state%mapped /= 0
  end function

  ! The kind of memory that the buffer has: one of the MEMORY_KIND_ constants.
  function buffer_memory_kind(buffer, stat, errmsg) result(kind)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    integer :: kind
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_memory_kind', stat, errmsg)
    kind = int(state%memory_kind)
  end function

  ! Whether CPU and GPU access one memory and see each other's stores without a driver call.
  function buffer_is_coherent(buffer, stat, errmsg) result(coherent)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    logical :: coherent
    type(onebuf_buffer_state) :: state

    state = state_of(buffer, 'buffer_is_coherent', stat, errmsg)
    coherent = state%coherent /= 0
  end function

  function state_of(buffer, me, stat, errmsg) result(state)
    type(unified_buffer), intent(in) :: buffer
    character(*), intent(in) :: me
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(onebuf_buffer_state) :: state

    state%size = int(storage_size(state)/8, c_size_t)
    call report(onebuf_buffer_get_state(buffer_handle(buffer), state), me, stat, errmsg, returns=.true.)
  end function

  ! A fence that the GPU reaches when all its uses of the buffer so far have ended: the CPU may then write. Invalid if there were none.
  function buffer_read_fence(buffer, stat, errmsg) result(fence)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle

    call report(onebuf_buffer_uses(buffer_handle(buffer), handle), 'buffer_read_fence', stat, errmsg, returns=.true.)
    call set_fence(fence, handle)
  end function

  ! A fence that the GPU reaches when its writes to the buffer so far have ended: the CPU may then read. Invalid if there were none.
  function buffer_write_fence(buffer, stat, errmsg) result(fence)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    type(gpu_fence) :: fence
    type(onebuf_fence) :: handle

    call report(onebuf_buffer_fence(buffer_handle(buffer), handle), 'buffer_write_fence', stat, errmsg, returns=.true.)
    call set_fence(fence, handle)
  end function

  ! Explains where the buffer is allocated, by which route each device accesses it, and why no better route was chosen.
  function explain_buffer(buffer, stat, errmsg) result(text)
    type(unified_buffer), intent(in) :: buffer
    integer, intent(out), optional :: stat
    character(*), intent(inout), optional :: errmsg
    character(:), allocatable :: text
    type(onebuf_string) :: string
    integer(c_int32_t) :: status

    text = ''
    status = onebuf_buffer_explain(buffer_handle(buffer), string)
    call report(status, 'explain_buffer', stat, errmsg, returns=.true.)
    if (status == ONEBUF_OK) text = taken_text(string)
  end function
end module
