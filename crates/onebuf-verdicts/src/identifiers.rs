//! Identifiers of hardware in texts: UUIDs, PCI and MAC addresses.

/// What stands for an identifier.
pub const MARK: &str = "<id>";

/// Replaces identifiers of hardware.
pub fn without_identifiers(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(in_identifier) {
        clean.push_str(&rest[..at]);
        let end = rest[at..].find(|c| !in_identifier(c)).map_or(rest.len(), |length| at + length);
        let word = &rest[at..end];
        let core = word.trim_matches(['.', ':', '-']);
        let (head, tail) = word.split_at(word.find(core).unwrap_or(0));
        match !core.is_empty() && is_identifier(core) {
            true => clean.extend([head, MARK, &tail[core.len()..]]),
            false => clean.push_str(word),
        }
        rest = &rest[end..];
    }
    clean + rest
}

fn in_identifier(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-:.".contains(c)
}

fn is_identifier(word: &str) -> bool {
    // NVIDIA's UUIDs of devices begin so.
    let bare = ["GPU-", "MIG-"].iter().find_map(|head| word.strip_prefix(head)).unwrap_or(word);
    let is = |lengths: &[usize], separator: char| is_hex(bare, lengths, separator);
    is(&[8, 4, 4, 4, 12], '-') || is(&[32], '-') || is(&[2; 6], ':') || is_pci(bare)
}

/// `0000:01:00.0`, with or without domain and function.
fn is_pci(word: &str) -> bool {
    let (place, function) = word.split_once('.').map_or((word, None), |(a, b)| (a, Some(b)));
    let is_function =
        |text: &str| text.len() == 1 && text.bytes().all(|b| (b'0'..b'8').contains(&b));
    let has_domain = [4, 8].iter().any(|&length| is_hex(place, &[length, 2, 2], ':'));
    match function {
        Some(function) => is_function(function) && (has_domain || is_hex(place, &[2, 2], ':')),
        None => has_domain,
    }
}

/// Whether the text has groups of hexadecimal digits of these lengths.
fn is_hex(text: &str, lengths: &[usize], separator: char) -> bool {
    let groups: Vec<&str> = text.split(separator).collect();
    let fits = |(group, length): (&&str, &usize)| {
        group.len() == *length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    groups.len() == lengths.len() && groups.iter().zip(lengths).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_hardware_are_removed() {
        let cases = [
            ("GPU-8f6f1c0e-5a60-4b8a-9b8e-0123456789ab is lost", "<id> is lost"),
            ("uuid 8f6f1c0e-5a60-4b8a-9b8e-0123456789ab.", "uuid <id>."),
            ("(0123456789abcdef0123456789ABCDEF)", "(<id>)"),
            ("at 0000:01:00.0, at 00000000:c1:00.0: or 01:00.1", "at <id>, at <id>: or <id>"),
            ("domain 0000:0a:1f only", "domain <id> only"),
            ("card aa:bb:cc:dd:ee:0f", "card <id>"),
        ];
        for (text, clean) in cases {
            assert_eq!(without_identifiers(text), clean, "{text}");
            assert_eq!(without_identifiers(clean), clean, "{text}");
        }
    }

    #[test]
    fn other_words_stay() {
        let texts = [
            "opencl:0 -> cuda:12 at 2097152 bytes: 0x56226b0dcf80",
            "OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-skylake-avx512",
            "580.159.04, 23.2.1-1~bpo12+rpt3, 4.5 (Core Profile) Mesa 22.3.6",
            "in tests/fd.rs:12:5: left; 12:30; a.b.c; --; the end.",
            "übung 12:00 – ::",
        ];
        for text in texts {
            assert_eq!(without_identifiers(text), text);
        }
    }
}
