package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/client"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server"
)

// others are metrics that alerts use and idemd has not: Prometheus's own, and node_exporter's.
var others = []string{"up", "node_filesystem_avail_bytes", "node_filesystem_size_bytes"}

// promQL are words of the expressions that are no metrics.
var promQL = []string{"abs", "absent", "by", "histogram_quantile", "increase", "m", "offset", "or", "rate", "sum", "time", "unless"}

// labelValues are those that labels can have.
func labelValues() map[string][]string {
	values := map[string][]string{"step": {"frozen", "sealed"}, "job": {"idemd"}}
	for a := server.AnswerOK; a <= server.AnswerDeadlineExceeded; a++ {
		values["answer"] = append(values["answer"], a.String())
	}
	for number, name := range idemdv1.ErrorReason_name {
		if number != 0 {
			values["answer"] = append(values["answer"], strings.TrimPrefix(name, "ERROR_REASON_"))
		}
	}
	for kind := client.EventGranted; kind.String() != "invalid"; kind++ {
		values["event"] = append(values["event"], kind.String())
	}
	values["operation"] = []string{"claim", "complete"}
	return values
}

// TestDeployAlerts checks that each alert is about metrics that there are, says what to do, and where that is
// said at length.
func TestDeployAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(readDeploy(t, "prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	known := append(readmeColumn(t, "| name | labels | |", "| metric | labels | |", "| metric | labels | what it counts |"), others...)
	for _, match := range regexp.MustCompile("`(idemd_reconcile_[a-z_]+)`").FindAllStringSubmatch(readmeText(t), -1) {
		known = append(known, match[1])
	}
	sections := map[string][]string{}
	for _, p := range readmePages(t) {
		sections[p.name] = p.anchors()
	}
	seen := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if seen[rule.Alert] || rule.Alert == "" {
				t.Errorf("%q twice, or without a name", rule.Alert)
			}
			seen[rule.Alert] = true
			for _, name := range metricsIn(rule.Expr) {
				if !slices.Contains(known, name) {
					t.Errorf("%s: there is no metric %s", rule.Alert, name)
				}
			}
			for _, match := range regexp.MustCompile(`(\w+)=~?"([^"]*)"`).FindAllStringSubmatch(rule.Expr, -1) {
				for value := range strings.SplitSeq(match[2], "|") {
					if allowed := labelValues()[match[1]]; match[1] != "mountpoint" && !slices.Contains(allowed, value) {
						t.Errorf("%s: %s is never %q", rule.Alert, match[1], value)
					}
				}
			}
			page, section, _ := strings.Cut(rule.Annotations["page"], "#")
			if !slices.Contains(sections[page], section) {
				t.Errorf("%s: there is no section %q", rule.Alert, rule.Annotations["page"])
			}
			if _, do, ok := strings.Cut(rule.Annotations["summary"], ": "); !ok || do == "" {
				t.Errorf("%s: the summary does not say what is wrong, and behind a colon what to do: %q", rule.Alert, rule.Annotations["summary"])
			}
			if !slices.Contains([]string{"page", "ticket"}, rule.Labels["severity"]) {
				t.Errorf("%s: severity %q", rule.Alert, rule.Labels["severity"])
			}
		}
	}
	if len(seen) == 0 {
		t.Error("no alerts")
	}
}

// metricsIn are the metrics of an expression; a histogram's buckets are the histogram.
func metricsIn(expr string) (names []string) {
	for _, bare := range []string{`\{[^}]*\}`, `\[[^]]*\]`, `\b(by|without|on) \([^)]*\)`} {
		expr = regexp.MustCompile(bare).ReplaceAllString(expr, " ")
	}
	for _, word := range regexp.MustCompile(`[a-z_:][a-z0-9_:]*`).FindAllString(expr, -1) {
		if !slices.Contains(promQL, word) {
			names = append(names, strings.TrimSuffix(word, "_bucket"))
		}
	}
	return names
}
