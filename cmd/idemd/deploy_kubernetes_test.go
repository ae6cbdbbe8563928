package main

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// object is what is looked at of the objects of Kubernetes.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string // of a ConfigMap
	Spec     struct {
		Type     string // of a Service
		Selector any
		Ports    []struct {
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Containers []struct {
					Command, Args []string
					Env           []struct {
						Name, Value string
						ValueFrom   struct {
							SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
						} `yaml:"valueFrom"`
					}
					EnvFrom []struct {
						ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
					} `yaml:"envFrom"`
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					VolumeMounts []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
					Secret    struct {
						SecretName string `yaml:"secretName"`
					}
					PersistentVolumeClaim struct {
						ClaimName string `yaml:"claimName"`
					} `yaml:"persistentVolumeClaim"`
				}
			}
		}
		VolumeClaimTemplates []struct{ Metadata struct{ Name string } } `yaml:"volumeClaimTemplates"`
	}
}

// A cluster is what one directory of deploy/kubernetes makes, with what it needs from outside.
type cluster struct {
	objects []object
	addr    map[string]string
	tls     string // the secret idemd-tls
	store   string // in the secret idemd-database
}

// applied builds the manifests as kubectl does before it applies them.
func applied(t *testing.T, dir string) []object {
	t.Helper()
	build := []string{"kubectl", "kustomize"}
	if _, err := exec.LookPath("kubectl"); err != nil {
		build = []string{"go", "run", "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1", "build"}
	}
	build = append(build, filepath.Join(deployDir, "kubernetes", dir))
	cmd := exec.CommandContext(t.Context(), build[0], build[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", build, err, stderr.String())
	}
	return decoded(t, string(out))
}

func decoded(t *testing.T, text string) (objects []object) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
}

// of returns the objects of a kind.
func (k *cluster) of(kinds ...string) (found []object) {
	for _, o := range k.objects {
		for _, kind := range kinds {
			if o.Kind == kind {
				found = append(found, o)
			}
		}
	}
	return found
}

func (k *cluster) config(t *testing.T, name string) map[string]string {
	t.Helper()
	for _, o := range k.of("ConfigMap") {
		if o.Metadata.Name == name {
			return o.Data
		}
	}
	t.Fatalf("there is no ConfigMap %s", name)
	return nil
}

// containers are those of the pods of an object, with the volumes that they mount.
func (k *cluster) containers(t *testing.T, o object) (found []*container) {
	t.Helper()
	pod := o.Spec.Template.Spec
	at := map[string]string{}
	for _, claim := range o.Spec.VolumeClaimTemplates {
		at[claim.Metadata.Name] = t.TempDir()
	}
	for _, v := range pod.Volumes {
		switch at[v.Name] = t.TempDir(); {
		case v.Secret.SecretName == "idemd-tls":
			at[v.Name] = k.tls
		case v.Secret.SecretName == "idemd-database":
			at[v.Name] = filepath.Join(k.tls, "database")
		case v.ConfigMap.Name != "":
			for name, text := range k.config(t, v.ConfigMap.Name) {
				put(t, filepath.Join(at[v.Name], name), (&container{addr: k.addr}).here(text))
			}
		}
	}
	for _, from := range pod.Containers {
		c := &container{args: from.Args, env: map[string]string{}, mount: map[string]string{}, addr: k.addr}
		for _, m := range from.VolumeMounts {
			if c.mount[m.MountPath] = at[m.Name]; at[m.Name] == "" {
				t.Errorf("%s mounts %s, which is no volume", o.Kind, m.Name)
			}
		}
		for _, e := range from.EnvFrom {
			for name, value := range k.config(t, e.ConfigMapRef.Name) {
				c.env[name] = value
			}
		}
		for _, e := range from.Env {
			if c.env[e.Name] = e.Value; e.ValueFrom.SecretKeyRef.Name == "idemd-database" {
				c.env[e.Name] = k.store
			}
		}
		found = append(found, c)
	}
	return found
}

// reached checks that each Service leads to a port of the pods, and that one leads there from
// outside of the cluster, to where the topology says that the region is.
func (k *cluster) reached(t *testing.T, region string) {
	t.Helper()
	pods := k.of("StatefulSet", "Deployment")[0].Spec.Template
	ports := map[string]int{}
	for _, p := range pods.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	balanced := map[int]bool{}
	for _, s := range k.of("Service") {
		for name, value := range s.Spec.Selector.(map[string]any) {
			if pods.Metadata.Labels[name] != value {
				t.Errorf("Service %s selects no pod: %s=%v", s.Metadata.Name, name, value)
			}
		}
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort] != p.Port {
				t.Errorf("Service %s: port %d leads to %q, which is %d", s.Metadata.Name, p.Port, p.TargetPort, ports[p.TargetPort])
			}
			if s.Spec.Type == "LoadBalancer" {
				balanced[p.Port] = true
			}
		}
	}
	if region == "" {
		return
	}
	_, port, _ := net.SplitHostPort(outside(region))
	if n, _ := strconv.Atoi(port); !balanced[n] || len(balanced) != 1 {
		t.Errorf("the topology says %s, and from outside there is %v", outside(region), balanced)
	}
}

// outside is where the topology of deploy/kubernetes has a region.
func outside(region string) string { return "idemd." + region + ".example.com:7600" }

// certificates makes a secret idemd-tls for each name, of one authority, and the certificate in
// the secret idemd-database in it.
func certificates(t *testing.T, ids ...string) map[string]string {
	t.Helper()
	from, to := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	ca, err := devca.New("deploy", from, to)
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	for _, id := range ids {
		pair, err := ca.Issue(devca.Leaf{
			URIs: []string{"spiffe://example.com/" + id}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: from, NotAfter: to, Server: true, Client: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		dirs[id] = t.TempDir()
		put(t, filepath.Join(dirs[id], "tls.crt"), string(pair.Cert))
		put(t, filepath.Join(dirs[id], "tls.key"), string(pair.Key))
		put(t, filepath.Join(dirs[id], "ca.crt"), string(ca.PEM()))
		put(t, filepath.Join(dirs[id], "database", "ca.crt"), string(ca.PEM()))
	}
	return dirs
}

// As who somebody is that has a secret idemd-tls.
func as(dir string) []string {
	return []string{"--ca=" + dir + "/ca.crt", "--cert=" + dir + "/tls.crt", "--key=" + dir + "/tls.key"}
}

// TestDeployKubernetes applies the manifests as far as that goes without a cluster: it starts what
// they have started, with the files that they mount.
func TestDeployKubernetes(t *testing.T) {
	names := []string{"eu", "us", "ap"}
	for prefix, store := range map[string]bool{"": false, "shared": true} {
		t.Run("regions "+prefix, func(t *testing.T) {
			secrets := certificates(t, "idemd/eu", "idemd/us", "idemd/ap", "payments", "on-call")
			addr := map[string]string{outside("eu"): freeAddr(t), outside("us"): freeAddr(t), outside("ap"): freeAddr(t)}
			var clusters []*cluster
			dsn := ""
			if store {
				dsn = pgtest.Shared(t).NewDatabase(t)
			}
			for _, name := range names {
				k := &cluster{applied(t, filepath.Join(prefix, name)), ownAddr(t, addr, addr[outside(name)]), secrets["idemd/"+name], dsn}
				k.reached(t, name)
				k.migrate(t)
				clusters = append(clusters, k)
			}
			for _, k := range clusters {
				k.serve(t)
			}
			typed := func(who string, words ...string) func(string, ...string) string {
				return func(region string, args ...string) string {
					return (&container{addr: addr}).run(t, append(append(append(words[:len(words):len(words)], "--addr="+outside(region)), as(secrets[who])...), args...)...)
				}
			}
			typed("on-call", "namespace", "create", "payments")("us")
			works(t, typed("payments", "claim", "--namespace=payments", "--id=order-1"), typed("on-call", "region", "list"))
		})
	}
	for _, dir := range []string{"database", "single"} {
		t.Run(dir, func(t *testing.T) {
			secrets := certificates(t, "idemd", "on-call")
			k := &cluster{objects: applied(t, dir), addr: ownAddr(t, nil, freeAddr(t)), tls: secrets["idemd"]}
			if dir == "database" {
				k.store = pgtest.Shared(t).NewDatabase(t)
			}
			k.reached(t, "")
			k.migrate(t)
			k.serve(t)
			run(t, append([]string{"namespace", "create", "payments", "--addr=" + k.addr["0.0.0.0:7600"]}, as(secrets["on-call"])...)...).ok(t)
		})
	}
}

// TestDeployDatabaseCertificate has the secret's URL name the authority of the database's certificate,
// which is in the secret too: whoever opens the database must find it.
func TestDeployDatabaseCertificate(t *testing.T) {
	secrets := certificates(t, "idemd")
	for _, dir := range []string{"database", "shared/eu"} {
		objects := applied(t, dir)
		k := &cluster{objects, ownAddr(t, nil, freeAddr(t)), secrets["idemd"], "postgres://idemd@127.0.0.1:1/idemd?sslmode=verify-full&sslrootcert=/etc/idemd-database/ca.crt"}
		opened := k.of("Job", "Deployment")
		if len(opened) != 2 {
			t.Errorf("%s has %d objects that open the database", dir, len(opened))
		}
		for _, o := range opened {
			for _, c := range k.containers(t, o) {
				out, err := c.command(t, "migrate", "status").CombinedOutput()
				if err == nil || !strings.Contains(string(out), "connection refused") {
					t.Errorf("%s, %s: %v: %s", dir, o.Kind, err, out)
				}
			}
		}
	}
}

// ownAddr adds to addr where a server listens itself.
func ownAddr(t *testing.T, addr map[string]string, own string) map[string]string {
	t.Helper()
	all := map[string]string{"0.0.0.0:7600": own, "0.0.0.0:7601": freeAddr(t)}
	for there, here := range addr {
		all[there] = here
	}
	return all
}

// migrate runs the jobs.
func (k *cluster) migrate(t *testing.T) {
	t.Helper()
	for _, o := range k.of("Job") {
		for _, c := range k.containers(t, o) {
			c.run(t)
		}
	}
}

// serve starts a server, whose readiness probe must be answered while it is alone.
func (k *cluster) serve(t *testing.T) {
	t.Helper()
	k.server(t).serve(t)
	healthy(t, k.addr["0.0.0.0:7601"])
}

// server is the one container of the server's pods.
func (k *cluster) server(t *testing.T) *container {
	t.Helper()
	var found []*container
	for _, o := range k.of("StatefulSet", "Deployment") {
		found = append(found, k.containers(t, o)...)
	}
	if len(found) != 1 {
		t.Fatalf("there are %d", len(found))
	}
	return found[0]
}

// TestDeployRestore makes a backup where the manifests have it put, and restores it as restore.yaml says.
func TestDeployRestore(t *testing.T) {
	secrets := certificates(t, "idemd/eu", "on-call")
	k := &cluster{applied(t, "eu"), ownAddr(t, nil, freeAddr(t)), secrets["idemd/eu"], ""}
	server := k.server(t)
	stop := server.serve(t)
	backup := func(name string) result {
		return run(t, append([]string{"backup", name, "--addr=" + k.addr["0.0.0.0:7600"]}, as(secrets["on-call"])...)...)
	}
	backup("20260131T1504").ok(t)
	stop()

	text := readDeploy(t, "kubernetes/restore.yaml")
	pod := decoded(t, text)[0].Spec.Template.Spec
	for _, v := range pod.Volumes {
		if want := v.Name + "-idemd-0"; v.PersistentVolumeClaim.ClaimName != want {
			t.Errorf("the volume %s is %s, want %s", v.Name, v.PersistentVolumeClaim.ClaimName, want)
		}
	}
	restore := &container{mount: map[string]string{}}
	for _, m := range pod.Containers[0].VolumeMounts {
		if restore.mount[m.MountPath] = server.mount[m.MountPath]; restore.mount[m.MountPath] == "" {
			t.Errorf("the server has nothing at %s", m.MountPath)
		}
	}
	var command []string
	for _, word := range pod.Containers[0].Command {
		command = append(command, restore.here(word))
	}
	for range 2 { // a job may be run again
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}

	_, value, _ := strings.Cut(text, `"value":"`)
	flag, _, _ := strings.Cut(value, `"`)
	plain := server.args
	server.args = append(slices.Clip(plain), flag)
	server.serve(t)()
	server.args = plain
	server.serve(t)
	backup("20260131T1504").fails(t, exitFailed, "exists")
}
