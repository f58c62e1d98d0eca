//! The cells of `operator certgen`.

use std::sync::Arc;

use hive::prelude::*;
use k8s_client::ClientProfile;

/// Returns the cells that make certificates and stop: of a hive of their own.
#[must_use]
pub fn certgen() -> Cell {
    let profile = || Arc::new(ClientProfile { only_requests: true, ..ClientProfile::default() });
    bundle([provide(profile), k8s_client::cell(), operator_certgen::cell()])
}

#[cfg(test)]
mod tests {
    #[test]
    fn its_cells_form_a_valid_hive() {
        hive::validate(super::certgen()).unwrap();
    }
}
