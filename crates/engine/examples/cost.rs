use keeptime_engine::*;
use keeptime_model::units::*;
use keeptime_model::topology::Topology;
use std::fmt::Write;
use std::time::Instant;
fn main(){
 let n:u32=std::env::args().nth(1).unwrap().parse().unwrap(); let live:u64=std::env::args().nth(2).unwrap().parse().unwrap(); let any=std::env::args().nth(3).is_some();
 let mut t=String::from("name=\"s\"\nswitches=[{name=\"s1\"}]\n");
 for i in 0..n{writeln!(t,"[[nodes]]\nname=\"n{i}\"\ncpu=\"6400 %\"\naddress=\"10.{}.{}.{}\"\ndisk={{read=\"1 GB/s\",write=\"1 GB/s\"}}",i/65536,i/256%256,i%256).unwrap();}
 for i in 0..n{writeln!(t,"[[links]]\nbetween=[\"n{i}\",\"s1\"]\nrate=\"100 Gbit/s\"").unwrap();}
 let wall=WallTime::from_unix_nanos(1_767_225_600_000_000_000); let m=Moment{wall,steady:Nanos::new(0)};
 let mut e=Engine::new(Cluster::new(Topology::from_toml(&t).unwrap(),|r|r).unwrap(),Policy{user_reservations:10_000_000,..Policy::default()},m);
 let caller=Caller{user:"ada".parse().unwrap(),operator:false};
 let mut x=12345u64; let mut r=move||{x^=x<<13;x^=x>>7;x^=x<<17;x};
 let mut times=vec![]; let mut ok=0;let mut batch=Instant::now(); let mut no=vec![];
 for k in 0..live{
  let base=r()%(n as u64-8); let nodes:Vec<String>=(0..8).map(|i|format!("\"n{}\"",base+i)).collect();
  let sel=if any{"{\"any\":8}".to_string()}else{format!("{{\"named\":[{}]}}",nodes.join(","))};
  let from=wall.unix_nanos()+3_600_000_000_000+ (r()%(30*86400))*1_000_000_000; let d=(60+r()%7200)*1_000_000_000;
  let req:keeptime_model::reservation::Request=serde_json::from_str(&format!(r#"{{"ask":{{"resources":{{"nodes":{sel},"cpu_ppm":1000000,"pattern":"hypercube","bits_per_second":1000000000,"disk_read_bytes_per_second":10000000,"disk_write_bytes_per_second":10000000}}}},"from_unix_nanos":{from},"duration_nanos":{d}}}"#)).unwrap();
  let call=Call::Reserve{key:format!("k{k}").parse().unwrap(),request:req};
  let t=Instant::now(); let s=e.step(m,Input::Call{ticket:Ticket(k),caller:caller.clone(),call}); let dt=t.elapsed().as_secs_f64()*1e6;
  if s.events[0].kind()=="granted"{ok+=1;times.push(dt)}else{no.push(dt)}
  if (k+1)%(live/5).max(1)==0{times.sort_by(f64::total_cmp);no.sort_by(f64::total_cmp);let q=|v:&Vec<f64>,p:f64|v.get(((v.len()as f64*p)as usize).min(v.len().max(1)-1)).copied().unwrap_or(0.);println!("{} ok {ok}: {:.0}/s grant p50 {:.1} p99 {:.1} us; refused {} p50 {:.1} p99 {:.1}",k+1,(live/5)as f64/batch.elapsed().as_secs_f64(),q(&times,0.5),q(&times,0.99),no.len(),q(&no,0.5),q(&no,0.99));times.clear();no.clear();batch=Instant::now();}
 }
 let s=std::fs::read_to_string("/proc/self/status").unwrap(); println!("{}",s.lines().find(|l|l.starts_with("VmRSS")).unwrap());
 // consider at a full time
 let mut c=vec![]; for k in 0..300{let from=wall.unix_nanos()+3_600_000_000_000+(r()%(20*86400))*1_000_000_000; let req:keeptime_model::reservation::Request=serde_json::from_str(&format!(r#"{{"ask":{{"resources":{{"nodes":{{"any":8}},"cpu_ppm":60000000,"pattern":"hypercube","bits_per_second":10000000000}}}},"from_unix_nanos":{from},"duration_nanos":3600000000000}}"#)).unwrap(); let t=Instant::now(); let s=e.step(m,Input::Call{ticket:Ticket(k),caller:caller.clone(),call:Call::Consider{request:req}}); c.push(t.elapsed().as_secs_f64()*1e6); if k<2{println!("{:?}",s.outputs.iter().map(|o|format!("{o:?}").chars().take(400).collect::<String>()).collect::<Vec<_>>());}}
 c.sort_by(f64::total_cmp); println!("consider p50 {:.0} p99 {:.0}",c[150],c[297]);
}
