//! The health report of all settings.

use reconciler::StatusKind;

use crate::Setting;

/// Summarizes the settings: failures of required ones are an error, failures of optional ones are only mentioned.
pub(crate) fn state<'a>(settings: impl Iterator<Item = &'a Setting>) -> Result<String, String> {
    let (mut count, mut missing, mut errors) = (0, Vec::new(), Vec::new());
    for setting in settings {
        count += 1;
        if setting.status.kind() != StatusKind::Error {
            continue;
        }
        let text =
            format!("{}={}: {}", setting.name, setting.value, setting.status.error().unwrap_or_default());
        if setting.optional {
            missing.push(text);
        } else {
            errors.push(text);
        }
    }
    if !errors.is_empty() {
        Err(errors.join("; "))
    } else if missing.is_empty() {
        Ok(format!("OK, {count} setting(s)"))
    } else {
        Ok(format!("OK, {count} setting(s), {} optional not written: {}", missing.len(), missing.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use reconciler::Status;

    use super::*;

    #[test]
    fn optional_failures_do_not_degrade() {
        let good = Setting::new("a.b".parse().unwrap(), 1);
        let mut bad = Setting::new("c.d".parse().unwrap(), 2).optional();
        bad.status = Status::failed("read-only");
        let both = [good, bad.clone()];
        assert_eq!(state(both.iter()).unwrap(), "OK, 2 setting(s), 1 optional not written: c.d=2: read-only");
        bad.optional = false;
        assert_eq!(state([bad].iter()).unwrap_err(), "c.d=2: read-only");
        assert_eq!(state(both[..1].iter()).unwrap(), "OK, 1 setting(s)");
    }
}
