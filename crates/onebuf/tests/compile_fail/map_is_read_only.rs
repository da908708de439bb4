use onebuf::{Buffer, Result};

fn change(buffer: &Buffer<u32>) -> Result<()> {
    let mut map = buffer.map()?;
    map[0] = 1;
    Ok(())
}

fn main() {
    let _ = change;
}
