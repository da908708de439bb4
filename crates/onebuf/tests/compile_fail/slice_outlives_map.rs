use onebuf::{Buffer, Result};

fn keep(buffer: &Buffer<u32>) -> Result<&mut [u32]> {
    let mut map = buffer.map_mut()?;
    Ok(&mut map[..])
}

fn main() {
    let _ = keep;
}
