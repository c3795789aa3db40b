#include "machine.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace fake_gpu {

static Fault* read_fault(std::istringstream value) {
  auto* fault = new Fault;
  value >> fault->kind >> fault->operation >> fault->number >> fault->samples;
  return fault;
}

// CUDA writes a bus id's domain with four digits, NVML with eight.
static std::string bus_of_cuda(const std::string& bus) {
  constexpr size_t digits = sizeof "0000:00:00.0" - 1;
  return bus.size() > digits ? bus.substr(bus.size() - digits) : bus;
}

static std::string dotted(std::string capability) {
  return capability.replace(capability.find(' '), 1, ".");
}

static void set(Gpu& gpu, const std::string& key, const std::string& value) {
  static const std::map<std::string, std::function<void(Gpu&, const std::string&)>> keys = {
      {"uuid", [](Gpu& g, const std::string& v) { g.uuid = v; }},
      {"name", [](Gpu& g, const std::string& v) { g.name = v; }},
      {"bus", [](Gpu& g, const std::string& v) { g.bus = bus_of_cuda(v); }},
      {"capability", [](Gpu& g, const std::string& v) { g.capability = dotted(v); }},
      {"memory", [](Gpu& g, const std::string& v) { g.memory_bytes = std::stoll(v); }},
      {"gflops", [](Gpu& g, const std::string& v) { g.flops_per_s = std::stod(v) * 1e9; }},
      {"gbytes_per_s", [](Gpu& g, const std::string& v) { g.bytes_per_s = std::stod(v) * 1e9; }},
      {"pcie_gbytes_per_s",
       [](Gpu& g, const std::string& v) { g.link_bytes_per_s = std::stod(v) * 1e9; }},
      {"launch_us", [](Gpu& g, const std::string& v) { g.launch_s = std::stod(v) * 1e-6; }},
      {"kernel_ms", [](Gpu& g, const std::string& v) { g.kernel_s = std::stod(v) * 1e-3; }},
      {"fault",
       [](Gpu& g, const std::string& v) { g.faults.push_back(read_fault(std::istringstream(v))); }},
  };
  auto found = keys.find(key);
  if (found != keys.end()) found->second(gpu, value);
}

static std::vector<Gpu*> all_gpus() {
  std::map<int, Gpu*> found;
  const char* path = getenv("NVML_STAND_IN");
  std::ifstream script(path ? path : "");
  for (std::string line; std::getline(script, line);) {
    std::istringstream words(line);
    std::string gpu, key, value;
    int number;
    if (!(words >> gpu >> number >> key) || gpu != "gpu") continue;
    std::getline(words >> std::ws, value);
    if (!found.count(number)) (found[number] = new Gpu)->number = number;
    set(*found[number], key, value);
  }
  std::vector<Gpu*> list;
  for (auto& [number, gpu] : found) list.push_back(gpu);
  return list;
}

// A device is named by its number or the beginning of its UUID. The first that is not there ends
// the list:
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
static Gpu* named(const std::vector<Gpu*>& all, const std::string& name) {
  for (Gpu* gpu : all) {
    bool by_uuid = name.rfind("GPU-", 0) == 0 && gpu->uuid.rfind(name, 0) == 0;
    if (by_uuid || name == std::to_string(gpu->number)) return gpu;
  }
  return nullptr;
}

static std::vector<Gpu*> visible(const std::vector<Gpu*>& all) {
  const char* names = getenv("CUDA_VISIBLE_DEVICES");
  if (!names) return all;
  std::vector<Gpu*> seen;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    Gpu* gpu = named(all, name);
    if (!gpu) break;
    seen.push_back(gpu);
  }
  return seen;
}

const std::vector<Gpu*>& gpus() {
  static const auto* list = new std::vector<Gpu*>(visible(all_gpus()));
  return *list;
}

}  // namespace fake_gpu
