use onebuf::{Buffer, Result};

fn peek(buffer: &Buffer<u32>) -> Result<u32> {
    let data = vec![0; 8];
    let _pending = buffer.read_async(.., data)?;
    Ok(data[0])
}

fn main() {
    let _ = peek;
}
