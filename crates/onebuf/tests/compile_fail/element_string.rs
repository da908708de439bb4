fn main() {
    let _: Option<onebuf::Buffer<String>> = None;
}
