use onebuf::{Buffer, Result};

fn both(buffer: &Buffer<u32>) -> Result<()> {
    let mut map = buffer.map_mut()?;
    let first = &mut map[..];
    let second = &mut map[..];
    first[0] = second[0];
    Ok(())
}

fn main() {
    let _ = both;
}
