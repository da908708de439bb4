//! OpenCL's kernel in CUDA's stream, where that is proven.

use super::Args;
use crate::{doctor, out::Result};
use onebuf::{
    Device, Hub,
    topology::{State, Verdict},
};
use onebuf_bench::mixed::{Pipeline, Setup};

/// Whether the first stage is grafted, and why not.
pub enum Graft {
    Used(Box<Pipeline>),
    /// It could have been, but for this.
    Not(String),
    /// There is nothing that could be.
    Never,
}

impl Graft {
    pub fn of(args: &Args, devices: &[Device; 2], setup: &Setup) -> Self {
        let [cl, cuda] = devices;
        if !is_possible(devices) {
            return Graft::Never;
        }
        let Verdict { state, why, .. } = cl.hub().graft_verdict(cl, cuda);
        match state {
            _ if args.no_graft => Graft::Not("--no-graft".into()),
            State::Proven => match Pipeline::grafted(devices, setup.clone()) {
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

    /// The reason, where there is one to tell.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Graft::Not(why) => Some(why),
            _ => None,
        }
    }
}

/// One chip, as OpenCL and as CUDA see it.
fn is_possible([first, second]: &[Device; 2]) -> bool {
    let apis = [first, second].map(|device| device.info().api.0);
    apis == ["opencl", "cuda"] && first.info().physical.same_chip(&second.info().physical)
}

/// Sees to it that grafting has been tried, where it could be used.
pub fn with_verdict(hub: Hub, ids: &[String; 2], args: &Args) -> Result<Hub> {
    let pair = [hub.device(&ids[0])?, hub.device(&ids[1])?];
    let known = hub.graft_verdict(&pair[0], &pair[1]).state != State::Declared;
    if args.no_graft || args.staged || known || !is_possible(&pair) {
        return Ok(hub);
    }
    eprintln!("onebuf: trying whether kernels of {} run on {} first …", ids[0], ids[1]);
    let ours = |from: &Device, to: &Device| from.id() == ids[0] && to.id() == ids[1];
    doctor::examine_grafts(&hub, false, ours)?;
    Ok(Hub::discover()?)
}
