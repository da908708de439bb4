use onebuf::{Buffer, Kernel, Queue, args};

fn both(buffer: &Buffer<u32>, queue: &Queue, kernel: &Kernel) -> onebuf::Result<()> {
    let arguments = args![buffer.write_on(queue)?];
    std::thread::scope(|scope| {
        scope.spawn(|| queue.launch(kernel, [1], &arguments));
        queue.launch(kernel, [1], &arguments)
    })
}

fn main() {
    let _ = both;
}
