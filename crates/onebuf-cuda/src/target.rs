//! Checks whether machine code matches a device's architecture.

use super::device::Driver;
use onebuf_hal::{Error, Result};

/// Refuses code for another architecture. If the code or the runtime does not name one, the check is left to the
/// driver.
pub(super) fn check(driver: &Driver, target: Option<&str>) -> Result<()> {
    let Some(target) = target else { return Ok(()) };
    let Some(device) = driver.check(driver.table.architecture(driver.device))? else {
        tracing::debug!(device = %driver.info.name, "does not say whether it is {target}");
        return Ok(());
    };
    match fits(target, &device) {
        true => Ok(()),
        false => Err(Error::unsupported(
            format!("a program for {target} on {}, which is {device}", driver.info.name),
            "a device of that kind",
        )),
    }
}

/// Whether the chip is the same and the device has the features that the code requires. Features that the code leaves
/// open always fit.
fn fits(target: &str, device: &str) -> bool {
    let (mut wanted, has) = (target.split(':'), device.split(':').collect::<Vec<_>>());
    wanted.next() == has.first().copied() && wanted.all(|feature| has[1..].contains(&feature))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn what_is_left_open_fits() {
        for target in ["gfx90a", "gfx90a:xnack-", "gfx90a:sramecc+", "gfx90a:sramecc+:xnack-"] {
            assert!(fits(target, "gfx90a:sramecc+:xnack-"), "{target}");
        }
        for other in ["gfx90", "gfx906", "gfx90a:xnack+", "gfx90a:sramecc-:xnack-", "gfx90a:", ""] {
            assert!(!fits(other, "gfx90a:sramecc+:xnack-"), "{other}");
        }
        assert!(fits("gfx1100", "gfx1100") && !fits("gfx1100:xnack-", "gfx1100"));
    }
}
