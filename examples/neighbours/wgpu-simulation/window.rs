//! The simulation in a window, one generation for each frame.

use super::{Life, SIDE, ready};
use std::{error::Error, sync::Arc};
use winit::{
    application::ApplicationHandler,
    dpi::PhysicalSize,
    event::WindowEvent,
    event_loop::{ActiveEventLoop, EventLoop},
    window::{Window, WindowId},
};

/// The window, once there is one.
#[derive(Default)]
struct App(Option<Shown>);

struct Shown {
    window: Arc<Window>,
    surface: wgpu::Surface<'static>,
    life: Life,
}

/// Runs until the window is closed.
pub fn run() -> Result<(), Box<dyn Error>> {
    Ok(EventLoop::new()?.run_app(&mut App::default())?)
}

impl Shown {
    fn new(events: &ActiveEventLoop) -> Result<Self, Box<dyn Error>> {
        let attributes = Window::default_attributes()
            .with_title("onebuf")
            .with_resizable(false)
            .with_inner_size(PhysicalSize::new(SIDE as u32, SIDE as u32));
        let window = Arc::new(events.create_window(attributes)?);
        let desc = wgpu::InstanceDescriptor::new_with_display_handle(Box::new(window.clone()));
        let instance = wgpu::Instance::new(desc);
        let surface = instance.create_surface(window.clone())?;
        let options = wgpu::RequestAdapterOptions {
            compatible_surface: Some(&surface),
            ..Default::default()
        };
        let adapter = ready(instance.request_adapter(&options))??;
        let size = SIDE as u32;
        let config = surface.get_default_config(&adapter, size, size).ok_or("no such surface")?;
        let life = Life::new(&adapter, config.format)?;
        surface.configure(&life.device, &config);
        Ok(Self { window, surface, life })
    }

    fn frame(&mut self) -> Result<(), Box<dyn Error>> {
        let frame = match self.surface.get_current_texture() {
            wgpu::CurrentSurfaceTexture::Success(frame)
            | wgpu::CurrentSurfaceTexture::Suboptimal(frame) => frame,
            other => return Err(format!("no frame: {other:?}").into()),
        };
        self.life.draw(&frame.texture.create_view(&Default::default()), |_| ())?;
        self.life.queue.present(frame);
        self.life.step()?;
        self.window.request_redraw();
        Ok(())
    }
}

impl ApplicationHandler for App {
    fn resumed(&mut self, events: &ActiveEventLoop) {
        match Shown::new(events) {
            Ok(shown) => self.0 = Some(shown),
            Err(why) => end(events, &*why),
        }
    }

    fn window_event(&mut self, events: &ActiveEventLoop, _: WindowId, event: WindowEvent) {
        match (event, &mut self.0) {
            (WindowEvent::CloseRequested, _) => events.exit(),
            (WindowEvent::RedrawRequested, Some(shown)) => {
                if let Err(why) = shown.frame() {
                    end(events, &*why);
                }
            }
            _ => {}
        }
    }
}

fn end(events: &ActiveEventLoop, why: &dyn Error) {
    eprintln!("{why}");
    events.exit();
}
