use onebuf::Access;

fn main() -> onebuf::Result<()> {
    let hub = onebuf::discover()?;
    let buffer = hub.buffer::<f32>(1024).build()?;
    let half = buffer.sub_buffer(..512, Access::ReadWrite)?;
    let quarter = half.sub_buffer(..256, Access::ReadWrite)?;
    drop(quarter);
    Ok(())
}
