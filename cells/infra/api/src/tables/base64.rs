//! Decoding of keys: standard base64 with padding (RFC 4648, section 4).

/// Decodes the text; the error is the offset of the first invalid character.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, usize> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (at, four) in text.as_bytes().chunks(4).enumerate() {
        let place = at * 4;
        let last = place + 4 == text.len();
        let given = four.iter().take_while(|byte| **byte != b'=').count();
        let mut bits = 0;
        for (offset, &byte) in four[..given].iter().enumerate() {
            bits |= digit(byte).ok_or(place + offset)? << (18 - 6 * offset);
        }
        let padded = four.len() == 4 && four[given..].iter().all(|byte| *byte == b'=');
        if !padded || given < 2 || (given < 4 && !last) {
            return Err(place + given);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..given]);
    }
    Ok(bytes)
}

fn digit(byte: u8) -> Option<u32> {
    let digit = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_faults_are_placed() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("AAAAAg==", &[0, 0, 0, 2]),
            ("/+8=", &[0xff, 0xef]),
        ] {
            assert_eq!(decode(text).as_deref(), Ok(bytes), "{text}");
        }
        for (text, place) in
            [("Zg=", 2), ("Zg", 2), ("Z===", 1), ("Zg==Zg==", 2), ("Zm9vY!==", 5), ("Z=8=", 1)]
        {
            assert_eq!(decode(text), Err(place), "{text}");
        }
    }
}
