use onebuf::{Kernel, Program, Result, Signature};

fn declare(program: &Program) -> Result<Kernel> {
    program.kernel("scale", Signature::new())
}

fn main() {
    let _ = declare;
}
