//! Errors of the options.

/// An option with an invalid value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ratio is out of range.
    #[error("connectivity-probe-frequency-ratio: {0} is out of range; give a number from 0 to 1")]
    Ratio(f64),
    /// The number of pings is out of range.
    #[error("health-check-icmp-failure-threshold: {0} is out of range; give a number from 1 to 50")]
    Threshold(u32),
    /// `--enable-cilium-health-api-server-access` has a name that no operation has.
    #[error(
        "enable-cilium-health-api-server-access: Unknown API flag: {0:?}; the operations are GetHealthz, GetStatus, PutStatusProbe"
    )]
    UnknownOperation(String),
}
