fn main() {
    let _: Option<onebuf::Buffer<bool>> = None;
}
