fn main() {
    let _: Option<onebuf::Buffer<&'static u32>> = None;
}
