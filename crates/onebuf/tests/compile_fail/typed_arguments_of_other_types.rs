use onebuf::{Buffer, Each, ReadView, Result, TypedKernel};

fn launch(
    gain: &TypedKernel<(Each<&mut f32>, f32)>,
    words: &Buffer<u32>,
    read: ReadView<'_, f32>,
    signal: &Buffer<f32>,
) -> Result<()> {
    gain.launch([64], (words, 2.0))?;
    gain.launch([64], (read, 2.0))?;
    gain.launch([64], (signal, 2))?;
    gain.launch([64], (signal,))
}

fn main() {
    let _ = launch;
}
