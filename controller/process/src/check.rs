//! The checks of a task's `config` in a job file: what every agent would refuse at the start, by the code of the start.

use herdlet_api_types::driver::{ConfigCheck, DriverInfo, EXEC, JAVA, QEMU};

use crate::{exec, java, qemu};

/// Adds the check to the description of a driver of this crate; others stay as they are.
pub fn checked(info: DriverInfo) -> DriverInfo {
    let check = match info.name.as_str() {
        EXEC => Some(ConfigCheck(exec::findings)),
        JAVA => Some(ConfigCheck(java::findings)),
        QEMU => Some(ConfigCheck(qemu::findings)),
        _other => info.check,
    };
    DriverInfo { check, ..info }
}
