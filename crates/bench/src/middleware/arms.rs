//! The same requests, at the same times: with Keeptime, without, and with plain HTB.

use super::bare::{BareLab, Sharing};
use super::neighbour::Neighbour;
use super::tasks::{Drawing, Renderer, Setting, SubTask};
use super::{CPU, LINK, NODES, lab_name};
use crate::lab::{BenchLab, bandwidth_grid};
use crate::profiles::{Wanted, make_surface, measure_alone, measure_under_load, parameters};
use anyhow::{Context, Result, bail, ensure};
use keeptime::arguments::GoalArguments;
use keeptime::commands::Session;
use keeptime::commands::run::{Admitted, Held, Manner, admit, run_reserved};
use keeptime::demo::goal;
use keeptime::execute::{Execution, Run};
use keeptime::files::load_profile;
use keeptime::interrupt;
use keeptime::machine::Machine;
use keeptime::promised::Promised;
use keeptime_lab::Spec;
use keeptime_model::application::Application;
use keeptime_model::profile::Profile;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::refine::Grid;
use keeptime_planner::translate::{Plan, Verdict};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Keeptime: admission by the broker, reservations, enforcement.
    Keeptime,
    /// Nobody: all start when they are asked for.
    Without,
    /// Nobody, and links are shared by program.
    Htb,
}

/// What became of all requests of an arm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Played {
    /// Of the machine, when it began.
    pub machine_load: f64,
    /// In their order.
    pub outcomes: Vec<Outcome>,
}

/// What became of one request. Times are those of a frame.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it was refused, if it was.
    pub refused: Option<String>,
    /// What was promised, by who promises.
    pub promised_seconds: Option<f64>,
    /// What half of the runs were expected to take.
    pub expected_seconds: Option<f64>,
    /// Reserved for each flow.
    pub mbit: Option<f64>,
    /// Measured; nothing if it was refused or did not end.
    pub seconds: Option<f64>,
    /// From launch to end.
    pub wall_seconds: Option<f64>,
    /// From when it was asked for until what was reserved for it was given back; nothing in arms that reserve
    /// nothing, and in what was recorded before this was.
    pub held_seconds: Option<f64>,
    /// From when it was asked for until it was admitted; nothing in arms where nobody decides, and in what was recorded
    /// before this was.
    pub waited_seconds: Option<f64>,
}

/// An application that was measured: what is asked of it and how long that may take.
#[derive(Debug)]
pub struct Measured {
    /// Which.
    pub renderer: Renderer,
    /// As it is asked for.
    pub application: Application,
    /// On a busy cluster.
    pub profile: Profile,
    /// On an idle one, with as much bandwidth as `profile` has at the most and more.
    pub alone: Profile,
    path: PathBuf,
    fitted: FittedProfile,
    /// By [`Renderer::settings`].
    drawings: Vec<Drawing>,
}

/// How a renderer is measured: so many seconds a run, at so many bandwidths.
#[derive(Debug, Clone, Copy)]
pub struct Care {
    /// How long a frame takes is first seen in a run of so long.
    pub seconds: u32,
    /// In Mbit/s, by equal factors between the first and the last.
    pub bandwidths: (f64, f64, u32),
    /// Runs of each point that a curve needs.
    pub samples: u32,
}

/// A node of the lab in which the input is made.
const WHOLE_NODE: CpuPpm = CpuPpm::from_percent(40);
/// So long a neighbour draws, as requests do, until the next one comes.
const NEIGHBOUR_SECONDS: u32 = 6;
/// What each flow can have of who is alone, in Mbit/s.
const ALONE_MOST: u64 = 800;
/// What the thesis prefers.
const PREFER: &str = "fastest";

impl Outcome {
    /// Whether it was run.
    pub fn is_admitted(&self) -> bool {
        self.refused.is_none()
    }

    /// From when it was asked for until it had ended, in seconds; nothing if it was refused or did not end.
    pub fn response_seconds(&self) -> Option<f64> {
        Some(self.waited_seconds.unwrap_or(0.0) + self.wall_seconds?)
    }
}

impl Arm {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Keeptime, Self::Without, Self::Htb];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keeptime => "with Keeptime",
            Self::Without => "without",
            Self::Htb => "plain HTB",
        }
    }
}

/// Measures the renderers' curves beside other runs of the same, as when the cluster is full, or goes on with what is
/// in `directory`.
pub fn measured(care: Care, out: &Path, directory: &Path) -> Result<[Measured; 2]> {
    // Who makes the input needs more of a node than renderers have.
    make_surface(&BenchLab::up(&Spec::star(lab_name()?, NODES, LINK, WHOLE_NODE)?)?, out)?;
    let lab = with_keeptime()?;
    let [raycast, render] = Renderer::ALL.map(|renderer| {
        let path = directory.join(format!("{}.json", renderer.name()));
        measure(&lab, renderer, care, path, out)
    });
    Ok([raycast?, render?])
}

fn measure(
    lab: &BenchLab,
    renderer: Renderer,
    care: Care,
    path: PathBuf,
    out: &Path,
) -> Result<Measured> {
    let session = |path: &Path, with: &[(&str, u32)]| -> Result<Session> {
        let session = session(lab, renderer, path, out)?;
        Ok(Session { application: with_constants(session.application, with)?, ..session })
    };
    let (least, most, count) = care.bandwidths;
    let grid = bandwidth_grid(least, most, count)?;
    let most = BitsPerSecond::from_mbit(most as u64);
    let pace = pace(&path, renderer);
    let all = renderer.settings().iter().map(|set| parameters(set)).collect::<Result<_>>()?;
    let neighbour =
        Neighbour::begin(session(&path, &[("seconds", NEIGHBOUR_SECONDS)])?, all, most)?;
    let wanted = |set, grid: &Grid, samples| Wanted {
        settings: std::slice::from_ref(set),
        nodes: &[NODES],
        grid: grid.clone(),
        samples,
    };
    let mut drawings = Vec::new();
    for set in renderer.settings() {
        let pacing = session(&pace, &[("seconds", care.seconds)])?;
        let paces = measure_under_load(&pacing, &wanted(set, &Grid::new(vec![most])?, 1))?;
        let drawing = drawing_at(&FittedProfile::new(pacing.application, &paces)?, set)?;
        let drawn = session(&path, &constants(drawing))?;
        measure_under_load(&drawn, &wanted(set, &grid, care.samples))?;
        drawings.push(drawing);
    }
    neighbour.end()?;
    let grid = Grid::new(vec![most, BitsPerSecond::from_mbit(ALONE_MOST)])?;
    for (set, drawing) in renderer.settings().iter().zip(&drawings) {
        let drawn = session(&alone(&path, renderer), &constants(*drawing))?;
        measure_alone(&drawn, &wanted(set, &grid, care.samples))?;
    }
    let application = session(&path, &[])?.application;
    Measured::read(renderer, application, path)
}

/// Where it is kept how long a frame takes at full speed: requests draw by that.
fn pace(path: &Path, renderer: Renderer) -> PathBuf {
    path.with_file_name(format!("{}-pace.json", renderer.name()))
}

/// Where it is kept what was measured alone.
fn alone(path: &Path, renderer: Renderer) -> PathBuf {
    path.with_file_name(format!("{}-alone.json", renderer.name()))
}

/// The least time of a frame that was measured.
fn fastest(profile: &FittedProfile, set: Setting) -> Result<Nanos> {
    let curve = profile.curve(&parameters(set)?, NODES);
    let point = curve.and_then(|curve| curve.points().last());
    Ok(point.with_context(|| format!("no curve of {}", set.join(", ")))?.time_nanos)
}

/// How much a request with these parameters draws.
fn drawing_at(paces: &FittedProfile, set: Setting) -> Result<Drawing> {
    Ok(Drawing::of(fastest(paces, set)?))
}

fn constants(Drawing { frames, warmup }: Drawing) -> [(&'static str, u32); 2] {
    [("frames", frames), ("warmup", warmup)]
}

fn with_constants(application: Application, constants: &[(&str, u32)]) -> Result<Application> {
    constants.iter().try_fold(application, |application, (name, value)| {
        Ok(application.with_constant(name.parse()?, value.to_string()))
    })
}

impl Measured {
    /// With the curves in `path` and beside it.
    pub fn read(renderer: Renderer, application: Application, path: PathBuf) -> Result<Self> {
        let (profile, alone) = (load_profile(&path)?, load_profile(&alone(&path, renderer))?);
        let fitted = FittedProfile::new(application.clone(), &profile)?;
        let paces = load_profile(&pace(&path, renderer))?;
        let paces = FittedProfile::new(application.clone(), &paces)?;
        let drawings = renderer.settings().iter().map(|set| drawing_at(&paces, set));
        let drawings = drawings.collect::<Result<_>>()?;
        Ok(Self { renderer, application, profile, alone, path, fitted, drawings })
    }

    /// The bound that a request states, in milliseconds, as people do.
    pub fn within_millis(&self, request: &SubTask) -> Result<u64> {
        let least = fastest(&self.fitted, self.setting(request))?;
        Ok((least.get() * request.within_percent / 100).div_ceil(1_000_000))
    }

    /// What a request asks for.
    pub fn goal(&self, request: &SubTask) -> Result<GoalArguments> {
        let within = format!("{}ms", self.within_millis(request)?);
        goal(&within, self.setting(request), PREFER)
    }

    /// The parameters of a request.
    pub fn setting(&self, request: &SubTask) -> Setting {
        self.renderer.settings()[request.setting]
    }

    /// How much a request draws.
    pub fn drawing(&self, request: &SubTask) -> Drawing {
        self.drawings[request.setting]
    }

    /// The application as a request has it drawn.
    fn application_of(&self, request: &SubTask) -> Result<Application> {
        with_constants(self.application.clone(), &constants(self.drawing(request)))
    }

    /// Seconds of a frame now, by [`Renderer::settings`]: alone, with the most bandwidth that `alone` has, on a lab of
    /// its own. It takes as long as one request of each.
    pub fn alone_seconds(&self, out: &Path) -> Result<Vec<f64>> {
        let lab = with_keeptime()?;
        let Session { cluster, mpi, application, .. } =
            session(&lab, self.renderer, &self.path, out)?;
        let nodes: Vec<_> = cluster.topology().node_indices().collect();
        let rate = Some(BitsPerSecond::from_mbit(ALONE_MOST));
        let seconds = |(set, drawing): (&Setting, &Drawing)| -> Result<f64> {
            let application = with_constants(application.clone(), &constants(*drawing))?;
            let parameters = parameters(set)?;
            let run =
                Run { application: &application, parameters: &parameters, nodes: &nodes, rate };
            let ran = Execution::new(&cluster, &mpi, run).reserved();
            let ran = ran.with_context(|| format!("{}, alone", set.join(", ")))?;
            Ok(ran.time.as_secs_f64())
        };
        self.renderer.settings().iter().zip(&self.drawings).map(seconds).collect()
    }

    /// Plays `requests` under `arm`, on a lab of its own; where the broker decides, each waits for room for up to `wait`.
    pub fn play(&self, arm: Arm, requests: &[SubTask], wait: Nanos, out: &Path) -> Result<Played> {
        let machine_load = Machine::here().load;
        let outcomes = match arm {
            Arm::Keeptime => self.play_reserved(requests, wait, out),
            Arm::Without => self.play_bare(requests, Sharing::Connections),
            Arm::Htb => self.play_bare(requests, Sharing::Htb),
        };
        Ok(Played { machine_load, outcomes: outcomes? })
    }

    fn play_reserved(&self, requests: &[SubTask], wait: Nanos, out: &Path) -> Result<Vec<Outcome>> {
        let lab = with_keeptime()?;
        let asking = session(&lab, self.renderer, &self.path, out)?;
        // Known before the first request comes.
        asking.ask(&self.goal(requests.first().context("no requests")?)?)?;
        let drawing = |request: &SubTask| -> Result<Session> {
            let session = session(&lab, self.renderer, &self.path, out)?;
            Ok(Session { application: self.application_of(request)?, ..session })
        };
        let drawing = requests.iter().map(drawing).collect::<Result<Vec<_>>>()?;
        let wait = (wait > Nanos::default()).then_some(wait);
        let manner = Manner { spare: true, wait, ..Manner::default() };
        each_at_its_time(requests, |number, request| {
            let asked = Instant::now();
            match admit(&asking, &self.goal(request)?, manner)? {
                Admitted::Held(held) => keep(&drawing[number], *held, asked),
                Admitted::Refused { decision, .. } => {
                    let Verdict::Refused(why) = &decision.verdict else {
                        bail!("refused without a reason");
                    };
                    let why = keeptime::story::refusal(why);
                    Ok(Outcome { refused: Some(why), ..Outcome::default() })
                }
            }
        })
    }

    fn play_bare(&self, requests: &[SubTask], sharing: Sharing) -> Result<Vec<Outcome>> {
        let lab = BareLab::up(&spec()?, LINK, sharing)?;
        each_at_its_time(requests, |number, request| {
            let set = parameters(self.setting(request))?;
            let went = lab.run(number, &self.application_of(request)?, &set)?;
            Ok(Outcome {
                seconds: went.map(|went| went.time.as_secs_f64()),
                wall_seconds: went.map(|went| went.wall.as_secs_f64()),
                ..Outcome::default()
            })
        })
    }
}

/// Runs what has just been admitted.
fn keep(session: &Session, Held { plan, hold, .. }: Held, asked: Instant) -> Result<Outcome> {
    let waited_seconds = Some(asked.elapsed().as_secs_f64());
    let kept = run_reserved(session, &Promised::from(&plan), &hold, false, &mut |_| {})?;
    // Until then nobody else can have it.
    drop(hold);
    let held_seconds = Some(asked.elapsed().as_secs_f64());
    let Plan { time_nanos, median_nanos, bandwidth_bits_per_second, .. } = plan;
    Ok(Outcome {
        refused: None,
        promised_seconds: Some(time_nanos.as_secs_f64()),
        expected_seconds: Some(median_nanos.as_secs_f64()),
        mbit: Some(bandwidth_bits_per_second.as_mbit_f64()),
        seconds: Some(kept.ran.time.as_secs_f64()),
        wall_seconds: Some(kept.ran.wall.as_secs_f64()),
        held_seconds,
        waited_seconds,
    })
}

/// Does something for each request when its time has come, whatever becomes of the others.
fn each_at_its_time<T: Send>(
    requests: &[SubTask],
    act: impl Fn(usize, &SubTask) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (begin, act) = (Instant::now(), &act);
    thread::scope(|scope| {
        let start = |(number, request): (usize, &SubTask)| {
            let (request, at) = (*request, Duration::from_nanos(request.at_nanos.get()));
            scope.spawn(move || {
                while let Some(left) = at.checked_sub(begin.elapsed()).filter(|l| !l.is_zero()) {
                    ensure!(!interrupt::stopped(), "interrupted");
                    thread::sleep(left.min(LOOK_EVERY));
                }
                act(number, &request).with_context(|| format!("request {number}"))
            })
        };
        let running: Vec<_> = requests.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

fn spec() -> Result<Spec> {
    Ok(Spec::star(lab_name()?, NODES, LINK, CPU)?)
}

fn with_keeptime() -> Result<BenchLab> {
    BenchLab::up(&spec()?)
}

/// The renderer as this evaluation has it, which finds its input in `out`.
fn session(lab: &BenchLab, renderer: Renderer, profile: &Path, out: &Path) -> Result<Session> {
    let mut session = lab.session(&format!("eval/middleware/{}.toml", renderer.name()), profile)?;
    let place = std::path::absolute(out)?.display().to_string();
    session.application = session.application.with_constant("out".parse()?, place);
    Ok(session)
}
