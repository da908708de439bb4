//! The OpenCL kernel in the CUDA stream, if that is proven.

use crate::{doctor, out::Result};
use onebuf::{
    Device, Hub,
    doctor::Cached,
    topology::{Verdict, VerdictState},
};
use onebuf_demo::{Pipeline, Setup};

/// Whether the first stage is grafted, and why not.
pub enum Graft {
    Used(Box<Pipeline>),
    /// Not grafted, although the devices could graft, for this reason.
    Not(String),
    /// The devices cannot graft.
    Never,
}

impl Graft {
    /// Decides whether to graft. `allowed` is false with `--no-graft`.
    pub fn of(allowed: bool, devices: &[Device; 2], setup: &Setup) -> Self {
        let [cl, cuda] = devices;
        if !cl.hub().could_graft(cl, cuda) {
            return Graft::Never;
        }
        let Verdict { state, why, .. } = cl.hub().graft_verdict(cl, cuda);
        match state {
            _ if !allowed => Graft::Not("--no-graft".into()),
            VerdictState::Proven => match Pipeline::grafted(devices, setup.clone()) {
                Ok(pipeline) => Graft::Used(Box::new(pipeline)),
                Err(why) => Graft::Not(why.to_string()),
            },
            _ => Graft::Not(why),
        }
    }

    pub fn pipeline(&self) -> Option<&Pipeline> {
        match self {
            Graft::Used(pipeline) => Some(pipeline),
            _ => None,
        }
    }

    /// The reason why it is not grafted, if there is one to report.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Graft::Not(why) => Some(why),
            _ => None,
        }
    }
}

/// Tests grafting if it could be used and has no verdict. Returns the new verdict.
pub fn try_it(hub: &Hub, ids: &[String; 2]) -> Result<Option<Cached>> {
    let pair = [hub.device(&ids[0])?, hub.device(&ids[1])?];
    let known = hub.graft_verdict(&pair[0], &pair[1]).state != VerdictState::Declared;
    if known || !hub.could_graft(&pair[0], &pair[1]) {
        return Ok(None);
    }
    eprintln!("onebuf: testing first whether kernels of {} run on {} …", ids[0], ids[1]);
    let ours = |from: &Device, to: &Device| from.id() == ids[0] && to.id() == ids[1];
    Ok(Some(doctor::examine_grafts(hub, false, ours)?.cached))
}
