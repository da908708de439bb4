use onebuf::{Buffer, Kernel, Queue, Result, args};

fn twice(queue: &Queue, kernel: &Kernel, buffer: &Buffer<u32>) -> Result<()> {
    let view = buffer.write_on(queue)?;
    queue.launch(kernel, [1], args![view])?;
    queue.launch(kernel, [1], args![view])
}

fn main() {
    let _ = twice;
}
