use onebuf::{Buffer, Map, Result};

fn leave(buffer: Buffer<u32>) -> Result<Map<'static, u32>> {
    buffer.map()
}

fn main() {
    let _ = leave;
}
