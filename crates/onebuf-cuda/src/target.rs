//! Whether machine code is for a device's kind of GPU.

use super::device::Driver;
use onebuf_hal::{Error, Result};

/// Refuses code for another kind. Where the code or the runtime does not say which it is, the driver is the one to refuse.
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

/// The same chip; and features that the code was compiled for are as they are there. What it leaves open fits both.
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
