use onebuf::{Buffer, Queue, Result};

fn main() -> Result<()> {
    let (buffer, queue) = make();
    let view = buffer.read_on(&queue)?;
    drop(buffer);
    view.len();
    Ok(())
}

fn make() -> (Buffer<u32>, Queue) {
    loop {}
}
