//! The machine's load averages.

use api_models::LoadResponse;

/// Parses the text of `/proc/loadavg`; `None` for any other text.
pub(crate) fn parse(text: &str) -> Option<LoadResponse> {
    let mut words = text.split_whitespace().map(str::to_owned);
    let (last_1_min, last_5_min, last_15_min) = (words.next()?, words.next()?, words.next()?);
    Some(LoadResponse { last_1_min, last_5_min, last_15_min })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_three_numbers() {
        let load = parse("0.77 1.59 2.26 3/412 1234\n").unwrap();
        assert_eq!((&*load.last_1_min, &*load.last_5_min, &*load.last_15_min), ("0.77", "1.59", "2.26"));
        assert_eq!(parse("0.77 1.59"), None);
    }
}
